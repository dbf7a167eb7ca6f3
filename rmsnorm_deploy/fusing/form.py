"""What a form of output is: the questions that fusing asks of each file in :mod:`rmsnorm_deploy.fusing.forms`."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol

import onnx

from rmsnorm_deploy.fusing.draft import Draft, Emission
from rmsnorm_deploy.recognise.match import Match


@dataclasses.dataclass(frozen=True)
class Unsuited:
    """A norm that a form cannot express.

    Attributes:
        reason: why, in one sentence without a full stop.
    """

    reason: str

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError("a refusal needs a reason")


@dataclasses.dataclass(frozen=True)
class Needs:
    """What one norm needs of the model around it.

    Attributes:
        opset: the oldest ai.onnx opset.
        ir_version: the oldest IR version.
        domains: versions of the other domains that it imports.
        bodies: function bodies by name; each is made for the ai.onnx opset of the model.
    """

    opset: int = 0
    ir_version: int = 0
    domains: Mapping[str, int] = dataclasses.field(default_factory=dict)
    bodies: Mapping[str, Callable[[int], onnx.FunctionProto]] = dataclasses.field(default_factory=dict)


class OutputForm(Protocol):
    """One form in which norms can be written.

    Attributes:
        opset: the ai.onnx opset without which no norm can be written; 0 where any will do.
        carries_references: whether it writes every parameter as an attribute of the norm, so that one may be an
            attribute of the function around it.
        may_convert: whether onnx's version converter, which rewrites every node, may raise a model to ``opset``.
    """

    opset: int = 0
    may_convert: bool = False
    carries_references: bool = False

    @abc.abstractmethod
    def suits(self, match: Match) -> Match | Unsuited:
        """``match`` as this form writes it; a residual addition that it does not take in stays a node of its own."""

    @abc.abstractmethod
    def needs(self, match: Match, imports: Mapping[str, int], /) -> Needs:
        """What a norm that :meth:`suits` has returned needs, in a model with these versions of domains."""

    @abc.abstractmethod
    def emit(self, match: Match, draft: Draft) -> Emission:
        """The nodes for a norm that :meth:`suits` has returned."""
