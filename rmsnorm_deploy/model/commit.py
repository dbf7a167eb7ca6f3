"""Weights beside a model that replaces another: one rename, the model's, has to replace both."""

from __future__ import annotations

import contextlib
import filecmp
import itertools
import re
from pathlib import Path

from rmsnorm_deploy.model.atomic import Staging


def old_weights(target: Path) -> list[Path]:
    """The weight files that an earlier save wrote beside the model ``target`` and that it uses, by name."""
    pattern = re.compile(re.escape(target.name) + r"(\.[0-9]+)?\.data")
    found = [file for file in target.parent.glob("*.data") if pattern.fullmatch(file.name) and not file.is_symlink()]
    if not found or not target.is_file():
        return []
    text = target.read_bytes()
    return sorted(file for file in found if file.name.encode(errors="surrogateescape") in text)


def commit_weights(stage: Staging, staged: Path, data: Path, old: list[Path], *, overwrite: bool) -> Path:
    """Put the weights ``staged`` under a name that no model uses yet. The model that names them comes next.

    Args:
        stage: where they were made.
        staged: the weight file.
        data: the name that they have where no model uses it.
        old: the weight files of the model that is to be replaced.
        overwrite: replace a file ``data`` that is none of them.

    Returns:
        The name; one of ``old`` where it has the same bytes.

    Raises:
        UsageError: ``data`` is there and must not be replaced.
    """
    for file in old:
        with contextlib.suppress(OSError):
            if filecmp.cmp(staged, file, shallow=False):
                return file
    names = (data.with_name(f"{data.stem}.{i}{data.suffix}") for i in itertools.count(1))
    name = data if data not in old else next(n for n in names if n not in old and not n.exists())
    if old:
        staged.chmod(old[0].stat().st_mode & 0o777)
    stage.doubt({name.name: staged} | {file.name: file for file in old})
    stage.publish(staged, name, overwrite=overwrite and name == data)
    return name
