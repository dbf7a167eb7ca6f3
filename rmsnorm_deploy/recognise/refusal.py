"""Why an alternative does not hold at a node, as an exception on its way to becoming a Miss."""

from __future__ import annotations

from collections.abc import Callable

from rmsnorm_deploy.recognise.match import Stage


class Refusal(Exception):
    """An alternative does not hold at a node. Becomes a Miss when nothing else holds either.

    ``weight`` orders refusals at one node: the heaviest is the one that a user wants to read. ``stage`` is how far the
    candidate had got, where the refusal knows better than the one who asked.
    """

    stage = Stage.REDUCTION

    def __init__(
        self,
        reason: str,
        *,
        expected: str = "",
        found: str | Callable[[], str] = "",
        hint: str = "",
        weight: int = 0,
    ) -> None:
        super().__init__(reason)
        self.weight = weight or (1 if expected and found else 0)
        self.reason = reason
        self.expected = expected
        self._found = found
        self.hint = hint

    @property
    def found(self) -> str:
        """What stands there; put into words only when somebody asks, since most refusals are never read."""
        return self._found if isinstance(self._found, str) else self._found()
