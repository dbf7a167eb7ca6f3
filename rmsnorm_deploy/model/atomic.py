"""Files and folders that appear complete, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.model.exchange import can_exchange, exchange
from rmsnorm_deploy.model.leftovers import is_mentioned, note_doubtful, remove_leftovers, temporary_folder
from rmsnorm_deploy.model.turns import one_at_a_time

_OVERWRITE = "Pass --force (overwrite=True in Python) to replace it."


class Staging:
    """Files that are made under temporary names and then moved into place, all of them or none.

    Attributes:
        folder: a temporary folder on the target's file system; it is gone at the end, with what is left in it.
        settled: everything is in place; an error of the system that comes now is not one of writing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settled = False
        self._done: list[tuple[Path, Path | None, int]] = []
        self._replaced: list[Path] = []
        self._doubtful: frozenset[str] = frozenset()

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
        if overwrite and staged.is_dir() and os.path.lexists(target):
            self._replace_folder(staged, target)
            return
        if overwrite and target.exists():
            staged.chmod(stat.S_IMODE(target.stat().st_mode))
            old = self._set_aside(target)
        self._done.append((target, old, staged.lstat().st_ino))  # before: Ctrl-C may come at any moment
        if overwrite:
            staged.replace(target)
        else:
            self._move_to_new(staged, target)
        _sync_folder(target.parent)

    def _replace_folder(self, staged: Path, target: Path) -> None:
        staged.chmod(stat.S_IMODE(target.stat().st_mode))
        number = staged.lstat().st_ino
        if can_exchange(target.parent):
            self._done.append((target, staged, number))
            exchange(staged, target)
        else:
            old = self.folder / f"old-{len(self._done)}"
            self._done.append((target, old, number))
            target.rename(old)
            staged.rename(target)
        _sync_folder(target.parent)

    def doubt(self, files: Mapping[str, Path]) -> None:
        """Should this run be killed, the next one removes those of ``files`` that no model beside them uses.

        Args:
            files: by the name that each has, or will have, beside the temporary folder.
        """
        self._doubtful = frozenset(files)
        note_doubtful(self.folder, files)

    def replaces(self, *files: Path) -> None:
        """Remove ``files`` in the end, if all goes well and no model beside them uses them by then."""
        self._replaced += files

    def _move_to_new(self, staged: Path, target: Path) -> None:
        try:
            if not staged.is_dir():
                # unlike a rename, a link fails where something has appeared under the name meanwhile
                os.link(staged, target)
                staged.unlink()  # a weight file with two names is refused
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
        # In turns with other runs: what a file is now must still hold when it is taken away.
        with one_at_a_time(self.folder.parent):
            for target, old, number in reversed(self._done):
                self._take_back(target, old, number)

    def _take_back(self, target: Path, old: Path | None, number: int) -> None:
        if old is not None and old.is_dir() and not os.path.lexists(target):
            old.rename(target)
            return
        if not os.path.lexists(target) or target.lstat().st_ino != number:  # not moved there, or replaced since
            return
        if old is None and target.name in self._doubtful and is_mentioned(target.name, target.parent):
            return  # another run has found these weights of use
        if old is not None and old.is_dir():
            aside = self.folder / f"undone-{number}"
            target.rename(aside)
            old.rename(target)
        elif old is not None:
            old.replace(target)
        elif target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    def _clear(self) -> None:
        if not self._replaced:
            return
        # In turns with other runs: between the question and the answer one could put weights under an old name.
        with one_at_a_time(self.folder.parent):
            for file in self._replaced:
                with contextlib.suppress(OSError):
                    if not is_mentioned(file.name, file.parent):
                        file.unlink()


@contextlib.contextmanager
def staging(target: Path) -> Iterator[Staging]:
    """A place beside ``target`` where it is made. What a dead run has left there is removed.

    Args:
        target: the file or folder to make.

    Raises:
        UsageError: its folder cannot be written into, or writing fails, for want of space for instance.
    """
    remove_leftovers(target.parent)
    try:
        folder = temporary_folder(target.parent)
    except OSError as error:
        raise UsageError(f"cannot write into {target.parent}: {error.strerror}", "Choose another folder.") from error
    stage = Staging(folder)
    try:
        yield stage
        stage._clear()
    except OSError as error:
        stage._roll_back()
        if stage.settled:
            raise
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
        made = stage.folder / "new"
        write_new(made, data)
        stage.publish(made, path, overwrite=True)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there yet, down to the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Have the names in ``folder`` on the disk before what comes next, where the file system can do that."""
    with contextlib.suppress(OSError):
        place = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)
