"""Temporary names, and what runs that were killed have left under them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import mmap
import os
import platform
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rmsnorm_deploy.model.turns import one_at_a_time

_NAME = re.compile(r"\.rmsnorm-deploy\.([0-9a-f]{8})\.([0-9]{1,9})\.[a-z0-9_]+\.tmp(\.onnx(\.check)?)?")
_TOO_OLD = 24 * 3600
"""Seconds after which no run can still be at work, wherever it ran."""
_JOURNAL = "journal"


def temporary_folder(parent: Path) -> Path:
    """A new folder in ``parent``, whose name says which process works in it.

    Raises:
        OSError: ``parent`` cannot be written into.
    """
    return Path(tempfile.mkdtemp(prefix=f".rmsnorm-deploy.{_here()}.{os.getpid()}.", suffix=".tmp", dir=parent))


def note_doubtful(folder: Path, files: Mapping[str, Path]) -> None:
    """Tell later runs that ``files`` go with the temporary ``folder``, beside which they are, unless a model uses them.

    Args:
        folder: of this run.
        files: by the name that each has, or will have.
    """
    text = json.dumps({name: file.lstat().st_ino for name, file in files.items()}).encode()
    with (folder / _JOURNAL).open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def remove_leftovers(parent: Path) -> None:
    """Remove what dead runs of this user have left in ``parent``; what cannot be removed stays."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            found = _NAME.fullmatch(entry.name)
            if found is None:
                continue
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.geteuid() and _is_dead(found[1], int(found[2]), status.st_mtime):
                    _remove(parent, Path(entry.path), is_folder=stat.S_ISDIR(status.st_mode))


def is_mentioned(name: str, parent: Path) -> bool:
    """Whether any model in ``parent`` may use the weight file ``name``: its text is in it."""
    wanted = os.fsencode(name)
    for path in parent.glob("*"):
        if path.suffix == ".data" or path.name == name or not path.is_file() or not path.stat().st_size:
            continue
        if path.suffix != ".onnx" and not name.startswith(f"{path.name}."):
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            if text.find(wanted) >= 0:
                return True
    return False


def _remove(parent: Path, left: Path, *, is_folder: bool) -> None:
    if not is_folder:
        left.unlink(missing_ok=True)
        return
    doubtful: object = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        doubtful = json.loads((left / _JOURNAL).read_bytes())
    if isinstance(doubtful, dict) and doubtful:
        with one_at_a_time(parent):
            for name, inode in doubtful.items():
                file = parent / name
                with contextlib.suppress(OSError, ValueError):
                    if file.name == name and file.lstat().st_ino == inode and not is_mentioned(name, parent):
                        file.unlink()
    shutil.rmtree(left, ignore_errors=True)


def _is_dead(here: str, process: int, changed: float) -> bool:
    if time.time() - changed > _TOO_OLD:
        return True
    if here != _here() or process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:  # somebody else's
        pass
    return False


@functools.cache
def _here() -> str:
    """Where a process's number means that process: this machine since it was started, and this container on it."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
