"""The formula of the operators, step by step, for everything that writes it out in standard operators."""

from __future__ import annotations

from typing import Protocol, TypeVar

from rmsnorm_deploy.op.definition import GATED_FIRST, GATED_LAST, GATED_NORMALISED, Op

Value = TypeVar("Value")


class Writer(Protocol[Value]):
    """Writes the steps of one norm; ``Value`` is what it calls a value.

    What is called wide is in the type of all arithmetic, ``stash_type``.
    """

    def wide(self, operand: str) -> Value:
        """The input ``operand``, wide."""

    def total(self) -> Value:
        """X + residual, rounded to X's type, which is the output ``sum``; then wide again."""

    def first_features(self, x: Value) -> Value:
        """The features of ``x`` that the statistic covers."""

    def mean_square(self, x: Value) -> Value:
        """The mean of the squares over ``axes``."""

    def combined(self, op_type: str, value: Value, attribute: str) -> Value:
        """``value`` combined by ``op_type`` with a float attribute."""

    def root(self, value: Value) -> Value:
        """The square root."""

    def divided(self, x: Value, rms: Value) -> Value:
        """``x / rms``, rounded to ``scale_type``."""

    def applied(self, op_type: str, value: Value, operand: str) -> Value:
        """``value`` combined by ``op_type`` with the input ``operand``; both and the result in ``scale_type``."""

    def gated(self, value: Value, at: int, *, rounded: bool) -> Value:
        """``value``, wide or in ``scale_type``, times the activated gate where ``gate_at`` is ``at``; else as it is.

        The product is wide or, if ``rounded``, in ``scale_type``.
        """

    def finish(self, value: Value) -> None:
        """``value`` in X's type is the output ``Y``."""

    def quantise(self, *, dynamic: bool) -> None:
        """The output ``Y`` as QuantizeLinear, or else DynamicQuantizeLinear, has it, is the output ``quantized``."""


def write(op: Op, to: Writer[Value]) -> None:
    """Write ``op`` step by step, as :mod:`rmsnorm_deploy.op.definition` states it.

    Args:
        op: the operator.
        to: takes the steps.
    """
    general, gated = op is Op.GENERAL_RMS_NORM, op is Op.GATED_RMS_NORM
    x = to.total() if "residual" in op.inputs else to.wide("X")
    if gated:
        x = to.gated(x, GATED_FIRST, rounded=False)
    measured = to.first_features(x) if general else x
    rms = to.root(to.combined("Add", to.mean_square(measured), "epsilon"))
    if general:
        rms = to.combined("Add", rms, "epsilon_outside")
        rms = to.combined("Max", rms, "rms_floor")
    y = to.divided(x, rms)
    if gated:
        y = to.gated(y, GATED_NORMALISED, rounded=True)
    y = to.applied("Mul", y, "scale")
    if general:
        y = to.applied("Add", y, "bias")
    if gated:
        y = to.gated(y, GATED_LAST, rounded=False)
    to.finish(y)
    if op.quantises:
        to.quantise(dynamic=op.is_dynamic)
