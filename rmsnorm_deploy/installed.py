"""Whether the installed releases are such as this package works with: one that is too old is refused in a line."""

from __future__ import annotations

import functools
import importlib.metadata
import re

from rmsnorm_deploy.errors import MissingEnvironment

_DISTRIBUTION = "rmsnorm-deploy"
_BOUND = re.compile(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)")

TRIED = {"onnx": "1.23", "onnx-ir": "1.1", "numpy": "2.4", "typer": "0.29", "rich": "15.0", "onnxruntime": "1.32"}
"""The newest releases that ``make matrix`` has run with."""


def bounds() -> dict[str, str]:
    """The oldest release of each package that this one works with, as its own metadata say; extras included."""
    try:
        lines = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # run from its sources
        return {}
    found: dict[str, str] = {}
    for line in lines:
        if match := _BOUND.match(line):
            found.setdefault(match[1], match[2])
    return {name: bound for name, bound in found.items() if name in TRIED}


def version(package: str) -> str | None:
    """The installed release of ``package``; None where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def too_old() -> dict[str, str]:
    """What is installed and too old: the sentence about each, by the requirement that would mend it."""
    found = {}
    for package, bound in bounds().items():
        installed = version(package)
        if installed is not None and _numbers(installed) < _numbers(bound):
            found[f"{package}>={bound}"] = f"{package} {installed} is too old: {bound} or newer is needed"
    return found


def newer_than_tried() -> list[str]:
    """A sentence about each package that is newer than any that was tried."""
    found = []
    for package, tried in TRIED.items():
        installed = version(package)
        if installed is not None and _numbers(installed)[:2] > _numbers(tried)[:2]:
            found.append(f"{package} {installed} is newer than {tried}, the newest that was tried")
    return found


@functools.cache
def require_versions() -> None:
    """Look at the installed releases; once in a process, unless they are refused.

    Raises:
        MissingEnvironment: one is too old.
    """
    old = too_old()
    if old:
        wanted = " ".join(f"'{requirement}'" for requirement in old)
        raise MissingEnvironment("; ".join(old.values()), f"Install newer ones: pip install {wanted}")
