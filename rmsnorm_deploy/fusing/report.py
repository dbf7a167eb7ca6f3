"""What a fusion did, as data: the same in Python, in JSON and in the command line's tables."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import onnx_ir as ir

from rmsnorm_deploy.recognise.facts import node_name
from rmsnorm_deploy.recognise.match import Match, Miss, Stage

SCHEMA_VERSION = 1
"""Version of the dictionary that :meth:`FusionReport.to_dict` gives; raised when a key changes its meaning."""

Task = Literal["fuse", "unfuse"]
"""What norms are written for."""


@dataclasses.dataclass(frozen=True)
class FusedNorm:
    """One norm that was written anew: as one node, in most forms.

    Attributes:
        node: name of the new node; of the last one in the form ``standard``.
        op: its operator.
        scope: the graph it stands in; "" is the main graph.
        x: name of the normalised value.
        scale: name of the scale.
        output: name of the output.
        residual: name of the residual, "" without one.
        gate: name of the gate, before its activation; "" without one.
        axes: the normalised dimensions.
        epsilon: inside the root.
        attributes: every attribute of the node.
        type: element type of X and Y, such as "FLOAT16".
        spelling: the alternatives of the grammar that were taken.
        rounding: "same" as the original, or "fewer" where the original rounds statistics or products more often.
        removed: names of the nodes that it replaced.
        kept: names of replaced nodes that stay because something else uses their values.
        notes: what a user should know about this site.
        result: name that the norm's own result has in the original; ``output`` is another one where it is quantised.
    """

    node: str
    op: str
    scope: str
    x: str
    scale: str
    output: str
    residual: str
    gate: str
    axes: tuple[int, ...]
    epsilon: float
    attributes: dict[str, Any]
    type: str
    spelling: str
    rounding: str
    removed: tuple[str, ...]
    kept: tuple[str, ...]
    notes: tuple[str, ...]
    result: str = ""


def described(match: Match, version: int) -> FusedNorm:
    """A norm as it is planned: every node that it stands for goes.

    Args:
        match: the norm.
        version: of our domain, in which the model's nodes are written.
    """
    parameters = match.parameters

    def name(value: ir.Value | None) -> str:
        return (value.name or "") if value is not None else ""

    return FusedNorm(
        node=node_name(match.end),
        op=parameters.op.value,
        scope=match.site.scope,
        x=name(match.x),
        scale=name(match.scale),
        output=name(_output(match)),
        residual=name(match.residual),
        gate=name(match.gate),
        axes=parameters.axes,
        epsilon=parameters.epsilon,
        attributes=parameters.to_attributes(version),
        type=ir.DataType(parameters.output_type).name,
        spelling=match.spelling,
        rounding="fewer" if match.fewer_roundings else "same",
        removed=tuple(node_name(n) for n in match.nodes),
        kept=(),
        notes=match.notes,
        result=name(match.output),
    )


def _output(match: Match) -> ir.Value:
    """What is left of the norm's result for others to read."""
    quantised = match.quantised
    return match.output if quantised is None or quantised.keeps_y else quantised.outputs[0][0]


@dataclasses.dataclass(frozen=True)
class FusionReport:
    """Everything that one call of :func:`rmsnorm_deploy.fuse` or :func:`rmsnorm_deploy.unfuse` did or would do.

    Attributes:
        fused: the norms that were written, in graph order.
        missed: the candidates left alone, each with its reason.
        ops_before: number of nodes by operator ("domain::Op" outside ai.onnx), subgraphs and local functions included.
        ops_after: the same after fusing; our own function bodies are not counted.
        warnings: what the user should know about the model as a whole.
        opset: the ai.onnx opset of the model that was returned; after a dry run, of the model as it is.
        form: the form in which the norms were written.
        already: number of our own nodes that the model had before and keeps.
        repaired: what tools had done to those nodes and was put right, such as "bodies of 9 norms"; after a dry run,
            what would be.
        task: "fuse" or "unfuse".
        dry_run: nothing was done; ``fused`` are the norms that would be.
        layer_norms: number of LayerNorms in the model, as an operator or spelled out, which stay: some of them
            :func:`rmsnorm_deploy.convert` turns into RMSNorms.
    """

    fused: tuple[FusedNorm, ...]
    missed: tuple[Miss, ...]
    ops_before: dict[str, int]
    ops_after: dict[str, int]
    warnings: tuple[str, ...] = ()
    opset: int = 0
    form: str = "plugin"
    already: int = 0
    repaired: tuple[str, ...] = ()
    task: Task = "fuse"
    dry_run: bool = False
    layer_norms: int = 0

    @property
    def near_misses(self) -> tuple[Miss, ...]:
        """The misses that a user may have expected to be fused: all that got as far as a square, variances excepted."""
        return tuple(m for m in self.missed if m.stage >= Stage.SQUARE and not m.other)

    @property
    def _nothing(self) -> str:
        if self.task == "unfuse":
            return "there is no norm to unfuse"
        return "no RMSNorm is left to fuse" if self.already else "no RMSNorm found"

    @property
    def _layer_norms(self) -> str:
        """What is said of LayerNorms, in a model in which there is nothing else to fuse."""
        if self.fused or self.already or not self.layer_norms or self.task == "unfuse":
            return ""
        several = f"{self.layer_norms} LayerNorms, which 'rmsnorm-deploy convert' may turn into RMSNorms"
        one = "1 LayerNorm, which 'rmsnorm-deploy convert' may turn into an RMSNorm"
        return f"; there {f'are {several}' if self.layer_norms > 1 else f'is {one}'}"

    def summary(self) -> str:
        """One line for people."""
        total = len(self.fused) + len(self.near_misses)
        verb = f"would {self.task}" if self.dry_run else f"{self.task}d"
        text = f"{verb} {len(self.fused)} of {total}" if total else self._nothing
        near = len(self.near_misses)
        if near and self.task == "fuse":
            text += f"; {near} near-miss{'es' if near > 1 else ''} (run explain)"
        text += self._layer_norms
        verb = "would repair" if self.dry_run else "repaired"
        return text + (f"; {verb}: {', '.join(self.repaired)}" if self.repaired else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain data; keys are stable within :data:`SCHEMA_VERSION`."""

        def miss(m: Miss) -> dict[str, Any]:
            return {
                "node": m.site.node,
                "op": m.site.op_type,
                "scope": m.site.scope,
                "stage": m.stage.label,
                "reason": m.reason,
                "stopped_at": m.node,
                "expected": m.expected,
                "found": m.found,
                "hint": m.hint,
            }

        return {
            "schema_version": SCHEMA_VERSION,
            "task": self.task,
            "opset": self.opset,
            "form": self.form,
            "already_fused": self.already,
            "layer_norms": self.layer_norms,
            "repaired": list(self.repaired),
            "fused": [dataclasses.asdict(f) for f in self.fused],
            "missed": [miss(m) for m in self.missed],
            "ops_before": self.ops_before,
            "ops_after": self.ops_after,
            "warnings": list(self.warnings),
        }
