"""Which C++ compiler there is."""

import pytest

from rmsnorm_deploy.errors import MissingEnvironment
from rmsnorm_deploy.run import toolchain


@pytest.fixture
def programs(monkeypatch, tmp_path):
    """Makes these programs the only ones on the PATH, and unsets the variables."""

    def make(*names):
        for name in names:
            (tmp_path / name).touch(mode=0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        for name in ("CC", "CXX"):
            monkeypatch.delenv(name, raising=False)
        return tmp_path

    return make


def test_the_first_on_the_path_is_taken(programs):
    folder = programs("clang++", "cc")
    assert toolchain.compiler() == toolchain.linker() == [str(folder / "clang++")]


def test_a_c_compiler_links_and_compiles_no_cpp(programs):
    folder = programs("gcc")
    assert toolchain.linker() == [str(folder / "gcc")]
    with pytest.raises(MissingEnvironment, match=r"there is no C\+\+ compiler") as caught:
        toolchain.compiler()
    assert "CXX" in caught.value.hint


def test_a_variable_decides_and_may_have_arguments(programs, monkeypatch):
    folder = programs("g++", "ccache", "mine")
    monkeypatch.setenv("CC", "mine")
    assert toolchain.linker() == [str(folder / "mine")]
    assert toolchain.compiler() == [str(folder / "g++")]
    monkeypatch.setenv("CXX", "ccache g++ -m64")
    assert toolchain.compiler() == toolchain.linker() == [str(folder / "ccache"), "g++", "-m64"]
    monkeypatch.setenv("CXX", "gone")
    with pytest.raises(MissingEnvironment, match="CXX names 'gone', which is not a program"):
        toolchain.compiler()
