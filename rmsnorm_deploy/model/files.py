"""Files by their names: which may be written, what a text says, and whether two of them are one file."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from rmsnorm_deploy.errors import UsageError

StrPath = str | os.PathLike[str]


def output_path(path: StrPath, *, folder: bool = False) -> Path:
    """What ``path`` names as an output.

    Args:
        path: as the caller states it.
        folder: the output is a folder, whose name may end in a slash.

    Raises:
        UsageError: nothing can have that name, or it names a folder that is not there.
    """
    text = os.fspath(path)
    if "\0" in text:
        raise UsageError(f"the output {text!r} has a NUL in its name, which no file can have", "Choose another name.")
    try:
        os.fsencode(text)
    except UnicodeError as error:
        raise UsageError(
            f"the output {text!r} has a name that this system cannot write", "Choose another name."
        ) from error
    try:
        os.lstat(text)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(f"the output {text} has a name that is too long", "Choose a shorter name.") from error
    # os.path: a Path drops the last slash, and raises where a name is too long
    if os.path.basename(text) in ("", ".") and not folder and not os.path.isdir(text or "."):  # noqa: PTH112, PTH119
        raise UsageError(
            f"the output '{text}' names a folder, which is not there",
            f"Name a file: '{Path(text) / 'fused.onnx'}', and make its folder first.",
        )
    return Path(text)


def check_output(path: Path, *, source: Path | None, overwrite: bool, new_folder: bool = False) -> None:
    """Whether ``path`` may be written.

    Args:
        path: the output file.
        source: the model that it was made from.
        overwrite: an existing output may be replaced.
        new_folder: its folder is made where it is missing.

    Raises:
        UsageError: the folder is missing or not writable, the output exists, is a folder, or is the input, or its name
            is too long.
    """
    try:
        if new_folder and not path.parent.exists():
            _check_new_folder(path.parent)
        else:
            _check_output(path, source, overwrite)
    except OSError as error:
        raise UsageError(f"the output {path} cannot be written: {error.strerror}", "Choose another output.") from error


def _check_output(path: Path, source: Path | None, overwrite: bool) -> None:
    folder = path.parent
    if not folder.exists():
        raise UsageError(f"the folder {folder} of the output does not exist", f"Create it: 'mkdir -p {folder}'.")
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is not a folder, so {path.name} cannot be written into it", "Choose another output."
        )
    if path.is_dir():
        raise UsageError(f"the output {path} is a folder", f"Name a file: '{path / 'fused.onnx'}'.")
    if path.exists() and not path.is_file():
        raise UsageError(f"the output {path} is a device, a pipe or a socket, not a file", "Choose another output.")
    if source is not None and same_file(path, source):
        raise UsageError(
            f"the output {path} is the input", "Choose another name: the original is needed to verify the result."
        )
    if os.path.lexists(path) and not overwrite:
        raise UsageError(f"the output {path} exists", "Pass --force (overwrite=True in Python) to replace it.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"the folder {folder} is not writable", "Choose an output in a folder of yours.")


def _check_new_folder(folder: Path) -> None:
    above = next(parent for parent in folder.parents if os.path.lexists(parent))
    if not above.is_dir():
        raise UsageError(f"{above} is not a folder, so {folder} cannot be made", "Choose another output.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(f"the folder {above} is not writable", "Choose an output in a folder of yours.")


@contextlib.contextmanager
def new_folders(folder: Path) -> Iterator[None]:
    """Make ``folder`` and those above it where they are missing; if the body fails, what is empty of them goes again.

    Raises:
        UsageError: it cannot be made.
    """
    missing = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder {folder} cannot be made: {error.strerror}", "Choose another output.") from error
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for place in missing:
                place.rmdir()
        raise


MOST_TEXT = 2**26
"""Bytes of the longest text that is read whole, such as a description or a log."""


def read_text(path: Path) -> str:
    """The text of a file that describes something, in UTF-8.

    Raises:
        OSError: it cannot be read, is no regular file (a device may have no end), or is too long to be such a text.
        UnicodeDecodeError: it is not text.
    """
    if path.exists() and not path.is_dir() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file")
    with path.open("rb") as file:
        data = file.read(MOST_TEXT + 1)
    if len(data) > MOST_TEXT:
        raise OSError(errno.EFBIG, f"it is longer than {MOST_TEXT >> 20} MiB")
    return data.decode("utf-8")


def same_file(a: Path, b: Path) -> bool:
    """Whether two names stand for one file, links followed."""
    try:
        return a.samefile(b)
    except OSError:
        return os.path.realpath(a) == os.path.realpath(b)
    except ValueError:  # a NUL in a name
        return False
