"""What a compiled folder says of itself, ``model.json``: with hashes of its parts, and believed only if whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.model.files import read_text
from rmsnorm_deploy.tvm.targets.registry import CPU, GPUS

LIBRARY = "model.so"
WEIGHTS = "model.params"
DESCRIPTION = "model.json"
SCHEMA_VERSION = 5

HEAD = 65536
"""Bytes at the beginning of a part that are hashed by themselves: they are checked where all of it would take long."""
_CHUNK = 1 << 20
_AGAIN = "Copy the whole folder again, or compile it again."


def part(path: Path) -> dict[str, Any]:
    """What is kept of a file of the folder: its size, and hashes of all of it and of its beginning."""
    head = hashlib.sha256()
    with path.open("rb") as file:
        head.update(file.read(HEAD))
    return {"bytes": path.stat().st_size, "sha256": _hash(path), "head_sha256": head.hexdigest()}


def require_whole(path: Path, said: Mapping[str, Any], *, hashed: bool = True) -> None:
    """Refuse a file that is not the one of which :func:`part` was made.

    Args:
        path: the file.
        said: of it.
        hashed: read all of it; else only its beginning.

    Raises:
        ModelError: it is missing, cannot be read, or has other bytes.
    """
    try:
        if not path.is_file():
            raise ModelError(f"{path.parent} lacks {path.name}", _AGAIN)
        size = path.stat().st_size
        if size != said["bytes"]:
            raise ModelError(f"{path} has {size} bytes instead of {said['bytes']}", _AGAIN)
        found = part(path) if hashed else {"head_sha256": _hash(path, HEAD)}
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}", "Check its permissions.") from error
    if any(said[key] != value for key, value in found.items()):
        raise ModelError(f"{path} has other bytes than when it was made: it is damaged or of another model", _AGAIN)


def write(folder: Path, description: Mapping[str, Any]) -> None:
    """Write ``model.json``."""
    text = json.dumps({**description, "sha256": _own_hash(description)}, indent=2)
    (folder / DESCRIPTION).write_text(text + "\n", encoding="utf-8")


def may_be_replaced(folder: Path) -> bool:
    """Whether what is there is a compiled model of any release, or an empty folder: nothing else is taken away."""
    try:
        if not any(folder.iterdir()):
            return True
        description = json.loads(read_text(folder / DESCRIPTION))
        return "schema_version" in description and (folder / LIBRARY).is_file()
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def read(folder: Path) -> dict[str, Any]:
    """What ``model.json`` in ``folder`` says, its entries of the types that they have to have.

    Raises:
        ModelError: there is none, it cannot be read, or is of another release.
    """
    try:
        description = json.loads(read_text(folder / DESCRIPTION))
        version = description["schema_version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unreadable(folder) from error
    if version != SCHEMA_VERSION:
        raise ModelError(
            f"{folder} has format {str(version)[:40]}, and this release reads {SCHEMA_VERSION}", "Compile it again."
        )
    for key, fits in _ENTRIES.items():
        if key not in description or not fits(description[key]):
            raise _unreadable(folder, f", its entry '{key}'")
    return dict(description)


def require_unchanged(folder: Path, description: Mapping[str, Any]) -> None:
    """Refuse a description that is not as it was written.

    Raises:
        ModelError: somebody or something has changed it.
    """
    rest = {key: value for key, value in description.items() if key != "sha256"}
    if description["sha256"] != _own_hash(rest):
        raise ModelError(f"{folder / DESCRIPTION} was changed since it was written", _AGAIN)


def _unreadable(folder: Path, what: str = "") -> ModelError:
    return ModelError(f"{folder} is not a compiled model: {DESCRIPTION}{what} cannot be read", "Compile it again.")


def _own_hash(description: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


def _hash(path: Path, most: int | None = None) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        if most is not None:
            found.update(file.read(most))
        else:
            while chunk := file.read(_CHUNK):
                found.update(chunk)
    return found.hexdigest()


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_part(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_size(value.get("bytes"))
        and _is_text(value.get("sha256"))
        and _is_text(value.get("head_sha256"))
    )


def _are(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(fits(item) for item in value)


def _is_dtype(value: Any) -> bool:
    try:
        return _is_text(value) and (value == "bfloat16" or bool(np.dtype(value)))
    except TypeError:
        return False


def _is_value(value: Any) -> bool:
    if not isinstance(value, dict) or not _is_text(value.get("name")) or not _is_dtype(value.get("type")):
        return False
    shape = value.get("shape", False)
    return shape is None or _are(lambda dim: _is_text(dim) or _is_size(dim))(shape)


def _is_blas(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or not _is_text(value.get("name")) or not _is_text(value.get("version")):
        return False
    plain = value["name"] not in ("", ".", "..", LIBRARY, WEIGHTS, DESCRIPTION) and "/" not in value["name"]
    file = value.get("file", False)
    return plain and (file is None or _is_part(file))


def _are_weights(value: Any) -> bool:
    return _is_part(value) and _are(_is_placed)(value.get("tensors"))


def _is_placed(value: Any) -> bool:
    """Whether it is the shape, the type and the place of a weight."""
    return (
        isinstance(value, list)
        and len(value) == 3
        and _are(_is_size)(value[0])
        and _is_text(value[1])
        and _is_size(value[2])
    )


_ENTRIES: dict[str, Callable[[Any], bool]] = {
    "tvm": _is_text,
    "target": lambda value: _is_text(value) and (value == CPU or value in GPUS),
    "mtriple": _is_text,
    "inputs": _are(_is_value),
    "outputs": _are(_is_value),
    "not_empty": _are(_is_text),
    "library": _is_part,
    "blas": _is_blas,
    "weights": _are_weights,
    "kernel_files": lambda value: isinstance(value, dict) and all(map(_is_part, value.values())),
    "sha256": _is_text,
}
"""The entries that are read, and what each has to be."""
