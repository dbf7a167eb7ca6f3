"""Files and folders that appear complete, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rmsnorm_deploy.errors import UsageError

_OVERWRITE = "Pass --force (overwrite=True in Python) to replace it."


class Staging:
    """Files that are made under temporary names and then moved into place, all of them or none.

    Attributes:
        folder: a temporary folder on the target's file system; it is gone at the end, with what is left in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._done: list[tuple[Path, Path | None]] = []

    def publish(self, staged: Path, target: Path, *, overwrite: bool = False) -> None:
        """Move a file or folder to its name. Should anything fail later, the earlier state is brought back.

        Args:
            staged: the complete file or folder, on the target's file system.
            target: its name from now on.
            overwrite: replace a file that is there; it gives its permissions to the new one.

        Raises:
            UsageError: ``target`` is there and must not be replaced.
        """
        old = None
        if overwrite:
            if target.exists():
                staged.chmod(stat.S_IMODE(target.stat().st_mode))
                old = self._set_aside(target)
            staged.replace(target)
        else:
            self._move_to_new(staged, target)
        self._done.append((target, old))

    def _move_to_new(self, staged: Path, target: Path) -> None:
        try:
            if not staged.is_dir():
                # unlike a rename, a link fails where something has appeared under the name meanwhile
                os.link(staged, target)
                return
        except FileExistsError as error:
            raise UsageError(f"the output {target} exists by now", _OVERWRITE) from error
        except OSError:  # a file system without hard links
            pass
        if os.path.lexists(target):
            raise UsageError(f"the output {target} exists by now", _OVERWRITE)
        staged.rename(target)

    def _set_aside(self, target: Path) -> Path:
        old = self.folder / f"old-{len(self._done)}"
        try:
            os.link(target, old, follow_symlinks=False)
        except OSError:  # a file system without hard links
            shutil.copy2(target, old)
        return old

    def _roll_back(self) -> None:
        for target, old in reversed(self._done):
            if old is not None:
                old.replace(target)
            elif target.is_dir():
                shutil.rmtree(target, ignore_errors=True)
            else:
                target.unlink(missing_ok=True)


@contextlib.contextmanager
def staging(target: Path) -> Iterator[Staging]:
    """A place beside ``target`` where it is made.

    Args:
        target: the file or folder to make.

    Raises:
        UsageError: its folder cannot be written into, or writing fails, for want of space for instance.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    except OSError as error:
        raise UsageError(f"cannot write into {target.parent}: {error.strerror}", "Choose another folder.") from error
    stage = Staging(folder)
    try:
        yield stage
    except OSError as error:
        stage._roll_back()
        raise UsageError(
            f"cannot write {target}: {error.strerror or error}", "Free some space or choose another folder."
        ) from error
    except BaseException:
        stage._roll_back()
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(path: Path, data: bytes) -> None:
    """Write a file: whoever reads ``path`` finds the old content or the new one, never half of it.

    Raises:
        UsageError: it cannot be written.
    """
    with staging(path) as stage:
        made = stage.folder / path.name
        write_new(made, data)
        stage.publish(made, path, overwrite=True)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there yet, down to the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
