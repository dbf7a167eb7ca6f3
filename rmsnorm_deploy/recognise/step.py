"""The mechanism of the grammar: what an alternative is, and what it gets to decide on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import onnx_ir as ir

from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.factor import Factor
from rmsnorm_deploy.recognise.facts import Facts
from rmsnorm_deploy.recognise.match import Stage
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.state import State

STATISTIC = frozenset((Stage.MEAN_SQUARE, Stage.RMS))
"""The stages before x is normalised: the value is made of the mean square alone."""
PRODUCT = frozenset((Stage.NORMALISED, Stage.OUTPUT))
"""The stages from the normalised x on."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One node that uses the value reached so far.

    Attributes:
        facts: what is known about the model.
        state: what has been recognised.
        node: the node.
        index: which of its inputs is the value reached.
    """

    facts: Facts
    state: State
    node: ir.Node
    index: int

    @property
    def other(self) -> ir.Value:
        """The other operand of a node of two.

        Raises:
            Refusal: there is none, or it is the value itself.
        """
        values = [v for i, v in enumerate(self.node.inputs) if i != self.index and v is not None]
        if len(values) != 1 or len(self.node.inputs) != 2:
            raise Refusal(f"{self.node.op_type} does not have two operands here", expected="two operands")
        if values[0] is self.state.value:
            raise Refusal("combines the value with itself", expected="another operand")
        return values[0]

    @property
    def output(self) -> ir.Value:
        """What the node makes of it."""
        return self.node.outputs[0]

    def constant(self) -> float:
        """The other operand as one constant number."""
        return checks.scalar_constant(self.facts, self.other, self.state.value)

    def factor(self) -> Factor:
        """The other operand as a constant factor, perhaps a size taken from a Shape."""
        return checks.constant_factor(self.facts, self.other, self.state.value, self.state.source)


@dataclasses.dataclass(frozen=True)
class Alternative:
    """One way to get from a value to the next.

    Attributes:
        label: its name in reports; no two alternatives have the same.
        stages: the stages at which it applies.
        ops: the standard operators that it reads.
        apply: gives the next state (the engine moves ``value``, ``nodes`` and ``path``), or raises a Refusal.
    """

    label: str
    stages: frozenset[Stage]
    ops: tuple[str, ...]
    apply: Callable[[Step], State]
