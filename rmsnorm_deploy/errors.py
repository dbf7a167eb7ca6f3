"""The errors that a user can meet, each with its exit code and a hint; and what messages say in a line."""

from __future__ import annotations

from collections.abc import Sequence


class RmsNormDeployError(Exception):
    """Base of every error that this package raises on purpose.

    Attributes:
        message: what is wrong and where, in one sentence.
        hint: what to do about it, in one sentence; may be empty.
        exit_code: the status with which the command line ends.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message if not hint else f"{message}\n{hint}")
        self.message = message
        self.hint = hint


class VerificationFailed(RmsNormDeployError):
    """A fused model differs from its original, or fewer norms were fused than `--require` asks for."""

    exit_code = 1


class UsageError(RmsNormDeployError):
    """The call contradicts itself or would overwrite something."""

    exit_code = 2


class ModelError(RmsNormDeployError):
    """The model cannot be read, is not safe to read, or cannot carry the operator."""

    exit_code = 3


class MissingEnvironment(RmsNormDeployError):
    """This machine or installation lacks what was asked for."""

    exit_code = 4


def install_hint(extra: str) -> str:
    """The hint of an error where what one of this package's extras installs is missing."""
    return (
        f"Install the extra '{extra}': pip install '.[{extra}]' in the repository, or, with a wheel, "
        f"pip install 'FILE.whl[{extra}]'."
    )


def first_line(error: BaseException | str, most: int = 300) -> str:
    """The first line of what an error says, at most ``most`` characters; its type where it says nothing."""
    return _lines(error)[0].strip()[:most]


def first_few(texts: Sequence[str], most: int) -> str:
    """The first ``most`` of ``texts`` with commas between them, and how many there are beside them."""
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def last_line(error: BaseException | str, most: int = 300) -> str:
    """The last line of what an error says, where a foreign library puts the cause; else as :func:`first_line`."""
    return _lines(error)[-1].strip()[:most]


def _lines(error: BaseException | str) -> list[str]:
    return str(error).strip().splitlines() or [type(error).__name__ if isinstance(error, BaseException) else ""]
