"""What converting did, as data: the proof, stream by stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import onnx_ir as ir

from rmsnorm_deploy.converting.apply import Biases
from rmsnorm_deploy.converting.decide import Decision
from rmsnorm_deploy.converting.stream import Stream
from rmsnorm_deploy.converting.writers import is_leaf
from rmsnorm_deploy.fusing.report import FusionReport
from rmsnorm_deploy.recognise.facts import node_name

SCHEMA_VERSION = 1
"""Version of the dictionary that :meth:`ConversionReport.to_dict` gives; raised when a key changes its meaning."""


@dataclasses.dataclass(frozen=True)
class Edit:
    """A constant that loses its mean.

    Attributes:
        name: of the constant.
        axis: over which of its dimensions, counted from the end.
        scales: names of the vectors that are folded into it first.
        copied: whether the original stays, because others read it as well.
        read_by: names of the nodes that read it for the stream.
    """

    name: str
    axis: int
    scales: tuple[str, ...]
    copied: bool
    read_by: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Centring:
    """A value that is centred while the model runs.

    Attributes:
        value: its name.
        reason: why it is not centred where it is made.
        node: what stands in the way.
    """

    value: str
    reason: str
    node: str


@dataclasses.dataclass(frozen=True)
class StreamReport:
    """One residual stream.

    Attributes:
        converted: whether its LayerNorms became RMSNorms, or would.
        norms: names of the LayerNorms that read it.
        values: names of the values that have no mean afterwards.
        edits: the constants that write into it.
        centrings: what is centred while the model runs.
        folded: norms whose bias went into the products behind them, with the names of those.
        reason: why it stays as it is; empty where it is converted.
        node: the node that stands in the way.
    """

    converted: bool
    norms: tuple[str, ...]
    values: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    centrings: tuple[Centring, ...] = ()
    folded: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    reason: str = ""
    node: str = ""


@dataclasses.dataclass(frozen=True)
class ConversionReport:
    """Everything that one call of :func:`rmsnorm_deploy.convert` did or would do.

    Attributes:
        streams: the residual streams.
        others: LayerNorms that no stream is read by, each with the reason.
        fusion: what fusing did afterwards; None without.
        ops_before: number of nodes by operator.
        ops_after: the same afterwards.
        warnings: what the user should know about the model as a whole.
        dry_run: nothing was done.
    """

    streams: tuple[StreamReport, ...]
    others: tuple[tuple[str, str], ...]
    ops_before: dict[str, int]
    ops_after: dict[str, int]
    fusion: FusionReport | None = None
    warnings: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def converted(self) -> int:
        """The number of LayerNorms that became RMSNorms, or would."""
        return sum(len(s.norms) for s in self.streams if s.converted)

    @property
    def found(self) -> int:
        """The number of LayerNorms."""
        return sum(len(s.norms) for s in self.streams) + len(self.others)

    def summary(self) -> str:
        """In a line, such as "converted 5 of 5 LayerNorms"."""
        after = "" if self.fusion is None else f"; {dataclasses.replace(self.fusion, layer_norms=0).summary()}"
        if not self.found:
            return f"there is no LayerNorm to convert{after}"
        verb = "would convert" if self.dry_run else "converted"
        return f"{verb} {self.converted} of {self.found} LayerNorm{'' if self.found == 1 else 's'}{after}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data; keys are stable within :data:`SCHEMA_VERSION`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "task": "convert",
            "converted": self.converted,
            "found": self.found,
            "streams": [dataclasses.asdict(s) for s in self.streams],
            "others": [{"node": node, "reason": reason} for node, reason in self.others],
            "ops_before": self.ops_before,
            "ops_after": self.ops_after,
            "fusion": None if self.fusion is None else self.fusion.to_dict(),
            "warnings": list(self.warnings),
        }


def described(decision: Decision, biases: Biases) -> tuple[StreamReport, ...]:
    """The streams in words; before anything is changed, as a value that is replaced loses its name."""
    done = [_converted(stream, decision, biases) for stream in decision.converted]
    return (*done, *(_refused(stream) for stream in decision.refused))


def others_of(decision: Decision) -> tuple[tuple[str, str], ...]:
    """The LayerNorms that no stream is read by, with the reasons."""
    return tuple((node_name(other.node), other.reason) for other in decision.others)


def _converted(stream: Stream, decision: Decision, biases: Biases) -> StreamReport:
    edits = [
        Edit(
            name=value.name or "",
            axis=how.axis,
            scales=_names(how.scales),
            copied=value in decision.copied,
            read_by=tuple(sorted({node_name(node) for node, _ in constant.edges})),
        )
        for (value, how), constant in stream.constants.items()
        if is_leaf(value)
    ]
    return StreamReport(
        converted=True,
        norms=tuple(node_name(n.node) for n in stream.norms),
        values=_names(v for v in stream.values if v not in stream.sources),
        edits=tuple(edits),
        centrings=tuple(Centring(s.value.name or "", s.reason, s.node) for s in stream.sources.values()),
        folded={
            node_name(n.node): tuple(node_name(p.node) for p in biases.folded[n.node])
            for n in stream.norms
            if n.node in biases.folded
        },
    )


def _refused(stream: Stream) -> StreamReport:
    assert stream.obstacle is not None
    return StreamReport(
        converted=False,
        norms=tuple(node_name(n.node) for n in stream.norms),
        reason=stream.obstacle.reason,
        node=stream.obstacle.node,
    )


def _names(values: Iterable[ir.Value]) -> tuple[str, ...]:
    return tuple(v.name or "" for v in values)
