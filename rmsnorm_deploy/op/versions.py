"""Which versions the operators' domain has, and what each changed.

A version never changes its meaning: a fused file must run for ever. Within a version an operator may grow attributes,
since an absent one means its default. A new version is for what is not an addition: another default, another meaning.

onnxruntime does not let a kernel know which version a model imports. From version 2 on, every node therefore carries
its version as the attribute ``version``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

DOMAIN = "rmsnorm_deploy"


@dataclasses.dataclass(frozen=True)
class Version:
    """One version of the domain.

    Attributes:
        number: as models import it.
        defaults: of the attributes whose default differs from the version before, by name.
    """

    number: int
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)


VERSIONS = (Version(1),)
"""Every version that this release reads and writes, oldest first."""


VERSION = VERSIONS[-1].number
"""The newest version."""


def newest() -> int:
    """The version that new models get."""
    return VERSIONS[-1].number


_UNSTATED = (None, 1000)
"""Imports that say nothing: none at all, and the end of a library's range, which onnxruntime writes when it saves."""


def is_stated(imports: Mapping[str, int]) -> bool:
    """Whether a model's imports say which version of the domain it is of.

    A process in which the library is registered makes every model that onnxruntime saves there import version 1000.

    Args:
        imports: the version that the model imports of each domain.
    """
    return imports.get(DOMAIN) not in _UNSTATED


def version_of(imports: Mapping[str, int], node: Mapping[str, Any] | None = None) -> int:
    """The version in which the nodes of a model are to be read and written.

    A model that imports the domain keeps its version, so that the nodes that it has keep their meaning.

    Args:
        imports: the version that the model imports of each domain.
        node: the attributes of one node, which is asked where the imports say nothing; None for a new one.

    Raises:
        ValueError: this release does not know the version that the model imports.
    """
    if is_stated(imports):
        version = imports[DOMAIN]
    else:
        version = newest() if node is None else int(node.get("version", VERSIONS[0].number))
    check(version)
    return version


def is_known(version: int) -> bool:
    """Whether this release knows a version."""
    return version in [v.number for v in VERSIONS]


def check(version: int) -> None:
    """Refuse a version that this release does not know.

    Raises:
        ValueError: it does not know it.
    """
    if not is_known(version):
        known = ", ".join(str(v.number) for v in VERSIONS)
        raise ValueError(f"version {version} of the domain {DOMAIN} is unknown to this release, which knows {known}")


def default(name: str, first: Any, version: int) -> Any:
    """The default of an attribute in a version, where ``first`` is the one that it came with."""
    for v in VERSIONS:
        if v.number <= version:
            first = v.defaults.get(name, first)
    return first
