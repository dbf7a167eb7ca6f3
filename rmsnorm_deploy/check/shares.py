"""What a model's operators take within it, and what share of that its norms do, by onnxruntime's own profile."""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rmsnorm_deploy.fusing.report import FusedNorm
from rmsnorm_deploy.op import Op
from rmsnorm_deploy.run.inputs import Feeds
from rmsnorm_deploy.run.runnable import Runnable
from rmsnorm_deploy.run.runner import Runner

_OURS = tuple(op.value for op in Op)
_NORMS = frozenset({*_OURS, "RMSNormalization", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"})
"""Operators that are a norm, whoever has made them: onnxruntime's optimizer, too, makes some of what it finds."""
_KERNEL = "_kernel_time"
_RUNS = 5
_INLINED = "_inlfunc_"
"""What onnxruntime puts before the names of the nodes of a function body."""


@dataclasses.dataclass(frozen=True)
class Share:
    """How much of a variant's time goes into norms.

    Attributes:
        variant: what ran.
        norms: microseconds in norms, of one run.
        all: microseconds in all operators, of one run; less than the run takes.
        share: the one divided by the other.
    """

    variant: str
    norms: float
    all: float
    share: float

    def __str__(self) -> str:
        return f"{self.share:.1%} {self.variant} ({self.norms:.1f} of {self.all:.1f} us)"


@dataclasses.dataclass(frozen=True)
class Profile:
    """What the operators of a variant take.

    Attributes:
        share: that of its norms.
        nodes: microseconds of one run by the node's name; onnxruntime's optimizer renames nodes and puts them together,
            but not those that run in the library's kernels.
    """

    share: Share
    nodes: dict[str, float]


def profile_of(
    variant: str, model: Runnable, norms: Iterable[FusedNorm], feeds: Feeds, *, library: bool, threads: int
) -> Profile | None:
    """Profile a variant; None where onnxruntime writes no profile, or none of a run.

    Casts that onnxruntime puts around norms of a type that it has no kernels for are not counted as theirs.

    Args:
        variant: what it is called.
        model: the model.
        norms: what was fused in the original: its nodes are counted as norms where they are still there.
        feeds: the inputs.
        library: use the library's kernels.
        threads: within an operator.
    """
    chains = {name for norm in norms for name in norm.removed}
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(model, library=library, threads=threads, profile=Path(folder) / "profile")
        run = runner.timed(feeds)
        for _ in range(_RUNS + 1):
            run()
        events = json.loads(runner.profiled().read_text(encoding="utf-8"))
    kernels = [e for e in events if e.get("cat") == "Node" and str(e.get("name", "")).endswith(_KERNEL)]
    kernels = kernels[len(kernels) // (_RUNS + 1) :]  # the first run warms up
    times: dict[tuple[str, bool], list[float]] = {}
    for event in kernels:
        times.setdefault((event["name"], _is_norm(event, chains)), []).append(float(event["dur"]))
    # the median: a run that something else interrupts says nothing of the model
    typical = {key: statistics.median(found) * len(found) / _RUNS for key, found in times.items()}
    whole = sum(typical.values())
    inside = sum(time for (_, is_norm), time in typical.items() if is_norm)
    nodes: dict[str, float] = {}
    for (event, _), time in typical.items():
        name = event.removesuffix(_KERNEL)
        nodes[name] = nodes.get(name, 0.0) + time
    return Profile(Share(variant, inside, whole, inside / whole), nodes) if whole else None


def _is_norm(event: dict[str, object], chains: set[str]) -> bool:
    arguments = event.get("args")
    operator = str(arguments.get("op_name", "")) if isinstance(arguments, dict) else ""
    name = str(event["name"]).removesuffix(_KERNEL)
    return operator in _NORMS or name in chains or name.startswith(tuple(f"{_INLINED}{op}_" for op in _OURS))


def with_names(model: Runnable) -> Runnable:
    """``model``, whose main graph's unnamed nodes have the names that reports call them by: that of an output."""
    if all(n.name for n in model.proto.graph.node):
        return model
    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    for node in proto.graph.node:
        node.name = node.name or next((o for o in node.output if o), node.op_type)
    return dataclasses.replace(model, proto=proto, path=None)
