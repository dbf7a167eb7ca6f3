"""Which neighbours of norms go into their operators: by the names that a user gives, or as a fused model has them."""

from __future__ import annotations

from collections.abc import Iterable

from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.op import Op
from rmsnorm_deploy.recognise.neighbours import Neighbour

_OPERATORS = {op.value: Neighbour.QUANTIZERS for op in Op if op.quantises} | {Op.GATED_RMS_NORM.value: Neighbour.GATES}
ALL = tuple(Neighbour)
IN_WORDS = ", ".join(n.value for n in ALL)


def neighbours_named(names: Iterable[Neighbour | str]) -> frozenset[Neighbour]:
    """The neighbours of these names.

    Raises:
        UsageError: there is none of a name; or ``names`` is one string.
    """
    if isinstance(names, str):
        raise UsageError(f"also is a sequence of names, not '{names}'", f"Write also=['{names}'].")
    found = set()
    for name in names:
        try:
            found.add(Neighbour(name))
        except ValueError:
            raise UsageError(f"norms have no neighbours '{name}'", f"Names are: {IN_WORDS}.") from None
    return frozenset(found)


def neighbours_in(operators: Iterable[str]) -> frozenset[Neighbour]:
    """The neighbours that nodes of our domain with these names have taken in."""
    return frozenset(_OPERATORS[name] for name in operators if name in _OPERATORS)
