"""A folder that replaces a folder: at once where the system can, and the old one is back when anything fails."""

from pathlib import Path

import pytest

from rmsnorm_deploy.model import atomic, exchange
from rmsnorm_deploy.model.atomic import staging


@pytest.fixture(params=[True, False], ids=["at once", "in two steps"])
def folder(request, tmp_path, monkeypatch):
    """A folder that is there."""
    if request.param and not exchange.can_exchange(tmp_path):
        pytest.skip("this file system cannot exchange names")
    if not request.param:
        monkeypatch.setattr(atomic, "can_exchange", lambda _: False)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "old").touch()
    return tmp_path / "c"


def names(folder):
    return [path.name for path in folder.iterdir()]


def publish(folder, then=lambda: None):
    with staging(folder) as stage:
        publish_in(stage, folder)
        then()


def fails(*_):
    raise RuntimeError


def publish_in(stage, folder):
    made = stage.folder / "made"
    made.mkdir()
    (made / "new").touch()
    stage.publish(made, folder, overwrite=True)


def test_the_new_one_is_there_and_the_old_one_gone(folder):
    publish(folder)
    assert names(folder) == ["new"]
    assert names(folder.parent) == ["c"]


def test_the_old_one_is_back_after_an_error(folder):
    with pytest.raises(RuntimeError):
        publish(folder, fails)
    assert names(folder) == ["old"]
    assert names(folder.parent) == ["c"]


def test_the_old_one_is_back_where_the_new_one_cannot_be_moved(folder, monkeypatch):
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda path, to: fails() if path.name == "made" else rename(path, to))
    monkeypatch.setattr(atomic, "exchange", fails)
    with pytest.raises(RuntimeError):
        publish(folder)
    assert names(folder) == ["old"]


def test_a_file_system_that_cannot_is_found_out(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(exchange, "exchange", refused)
    assert not exchange.can_exchange(tmp_path)
    assert not exchange.can_exchange(tmp_path / "nowhere")
    assert names(tmp_path) == []
