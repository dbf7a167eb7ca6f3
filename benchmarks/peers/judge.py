"""Whether a tool's result computes what its original computes, and how many norms it holds.

Both run in onnxruntime on the CPU with its optimizer off, so that nothing but the tool's own work is judged. They are
measured against the original in float64 where that can be had. A result is wrong where it is further off than twice
the original and than :data:`BAR_ULPS`. The bar is wide on purpose: another order of rounding is not a mistake, and
a misplaced epsilon is off by percents.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from rmsnorm_deploy.check.exact import Truth, by_definition
from rmsnorm_deploy.check.ulp import ulp
from rmsnorm_deploy.errors import UsageError, first_line
from rmsnorm_deploy.op import DOMAIN, Op
from rmsnorm_deploy.op.dtypes import FLOAT_TYPES, float_type
from rmsnorm_deploy.run.inputs import OTHER_SIZE, Array, Feeds, adversarial_inputs, is_float, make_inputs
from rmsnorm_deploy.run.registering import library_problem
from rmsnorm_deploy.run.runnable import Runnable
from rmsnorm_deploy.run.runner import Runner

FUSED = frozenset({"SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "RMSNormalization"})
OURS = frozenset(o.value for o in Op)

BAR_ULPS: dict[int, tuple[float, float]] = {
    TensorProto.BFLOAT16: (8, 40),
    TensorProto.FLOAT16: (8, 40),
    TensorProto.FLOAT: (64, 512),
    TensorProto.DOUBLE: (2.0**30, 2.0**34),
}
"""Allowed error in ULP, (row by row, whole models), by the narrowest float type in the model, narrowest first.

One ULP is that of the row's largest value, see :mod:`rmsnorm_deploy.check.ulp`. In a model that mixes features (matrix
products, convolutions) an output is one row. For float64: every fused operator holds epsilon as a float32."""
_MIXING = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention", "MultiHeadAttention"})
_SHRINK = 2.0**-7
_SMALL = 2.0**-10
"""Bring an embedding's row, and a normal one, near the square root of a usual epsilon."""


def live_nodes(model: ModelProto) -> list[NodeProto]:
    """Nodes that reach an output: of the graph, of subgraphs, and of local functions that live nodes call.

    The bodies of our own operators are not looked into: they spell the norm that the node already is.
    """
    nodes = list(_reaching(model.graph.node, [o.name for o in model.graph.output]))
    functions = {(f.domain, f.name): f for f in model.functions if f.domain != DOMAIN}
    for node in nodes:  # grows meanwhile: functions call functions
        function = functions.pop((node.domain, node.op_type), None)
        if function is not None:
            nodes += _reaching(function.node, list(function.output))
    return nodes


def _reaching(nodes: Iterable[NodeProto], outputs: Iterable[str]) -> Iterator[NodeProto]:
    wanted = set(outputs)
    for node in reversed(list(nodes)):
        if not wanted.intersection(o for o in node.output if o):
            continue
        wanted.update(_read_by(node))
        yield node
        for graph in _subgraphs(node):
            yield from _reaching(graph.node, [o.name for o in graph.output])


def _read_by(node: NodeProto) -> set[str]:
    """Values that a node reads, those that its subgraphs capture included."""
    names = {i for i in node.input if i}
    for graph in _subgraphs(node):
        names.update(o.name for o in graph.output)
        for inner in graph.node:
            names |= _read_by(inner)
    return names


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def count_norms(model: ModelProto) -> int:
    """Live nodes that are one fused norm each, in anybody's spelling."""
    return sum(n.op_type in (OURS if n.domain == DOMAIN else FUSED) for n in live_nodes(model))


@dataclasses.dataclass(frozen=True)
class _Case:
    """One set of inputs and what the original makes of them.

    Attributes:
        name: "normal", "scaled" (row by row) or "small".
        feeds: the inputs.
        tables: embeddings to shrink in both models, by content.
        truth: outputs in float64, or None.
        originals: outputs of the original: as onnxruntime gives them, and by definition, as far as each runs.
    """

    name: str
    feeds: Feeds
    tables: frozenset[str]
    truth: list[Array] | None
    originals: list[list[Array]]


class Original:
    """An original model, evaluated once for all tools.

    Attributes:
        loads: onnxruntime loads it.
        cases: the sets of inputs on which it runs somewhere; empty where it runs nowhere.
    """

    def __init__(self, path: str) -> None:
        self.model = Runnable.of(Path(path))
        proto = self.model.proto
        self.outputs = [o.name for o in proto.graph.output]
        kinds = {t.data_type for t in proto.graph.initializer}
        values = [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]
        kinds |= {v.type.tensor_type.elem_type for v in values}
        self.precision = next((k for k in BAR_ULPS if k in kinds), TensorProto.FLOAT)
        operators = {n.op_type for n in live_nodes(proto)}
        self.mixes = bool(operators & _MIXING)
        # onnx's evaluator squares in 16 bits there, against the operator's definition, and overflows
        self._stated = (
            self.precision in (TensorProto.BFLOAT16, TensorProto.FLOAT16) and "RMSNormalization" not in operators
        )
        self.loads = bool(_sessions(self.model))
        self.cases = [c for c in self._cases() if c.originals]

    def _cases(self) -> Iterator[_Case]:
        try:
            feeds = make_inputs(self.model.proto, _missing_shapes(self.model.proto))
        except UsageError:  # inputs that are not tensors
            return
        yield self._case("normal", feeds, self.model)
        if any(is_float(v) for v in feeds.values()):
            yield self._case("scaled", adversarial_inputs(self.model.proto, feeds), self.model)
            # where a norm spans several rows, the largest of them hides the others
            small = {k: (v.astype(np.float64) * _SMALL).astype(v.dtype) for k, v in feeds.items() if is_float(v)}
            yield self._case("small", feeds | small, self.model)
            return
        # a language model reads integers: its rows become small where its embeddings do
        tables = _embeddings(self.model.proto)
        if tables:
            yield self._case("scaled", feeds, shrunk(self.model, tables), tables)

    def _case(self, name: str, feeds: Feeds, model: Runnable, tables: frozenset[str] = frozenset()) -> _Case:
        originals = []
        for session in _sessions(model)[:1]:
            try:
                originals.append(session(feeds))
            except Exception:  # onnxruntime's exceptions have no common base of their own
                break
        if self._stated and (stated := by_definition(model, feeds)) is not None:
            originals.append(stated)
        return _Case(name, feeds, tables, Truth(model)(feeds) if originals else None, originals)


def _missing_shapes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """Rows of the length of the model's longest vector, for inputs of unknown rank."""
    tensors = [*model.graph.initializer]
    tensors += [a.t for n in model.graph.node if n.op_type == "Constant" for a in n.attribute if a.HasField("t")]
    length = max((t.dims[0] for t in tensors if len(t.dims) == 1), default=OTHER_SIZE)
    unknown = [v for v in model.graph.input if not v.type.tensor_type.HasField("shape")]
    return {v.name: (2, 5, length) for v in unknown if v.type.HasField("tensor_type")}


def _sessions(model: Runnable, *, library: bool = False) -> list[Runner]:
    """A session in a list: without the optimizer, or with it where only that loads; empty where neither does."""
    for optimise in (False, True):
        try:
            return [Runner(model, optimise=optimise, library=library, threads=1)]
        except Exception:  # as above
            continue
    return []


def _valid(path: str) -> bool:
    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception:  # the checker's and shape inference's own, and what they meet in a broken file
        return False
    return True


def _digest(tensor: TensorProto) -> str:
    array = numpy_helper.to_array(tensor)
    return hashlib.sha256(repr((tensor.data_type, array.shape)).encode() + array.tobytes()).hexdigest()


def _embeddings(model: ModelProto) -> frozenset[str]:
    """Digests of float matrices that are only ever read row by row."""
    matrices = {t.name: _digest(t) for t in model.graph.initializer if t.data_type in FLOAT_TYPES and len(t.dims) == 2}
    rows: set[str] = set()
    others: set[str] = set()
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name in matrices:
                (rows if node.op_type == "Gather" and i == 0 else others).add(matrices[name])
    return frozenset(rows - others)


def shrunk(model: Runnable, tables: frozenset[str]) -> Runnable:
    """A copy with these tables made small. Tools rename tensors and merge equal ones, so the content is the name.

    Raises:
        LookupError: the model does not hold them any more.
    """
    proto = model.loaded()
    tensors = [*proto.graph.initializer]
    for node in proto.graph.node:
        if node.op_type == "Constant":
            tensors += [a.t for a in node.attribute if a.HasField("t")]
    found = set()
    for tensor in tensors:
        if tensor.data_type in FLOAT_TYPES and len(tensor.dims) == 2 and (digest := _digest(tensor)) in tables:
            array = numpy_helper.to_array(tensor)
            small = (array.astype(np.float64) * _SHRINK).astype(array.dtype)
            tensor.CopyFrom(numpy_helper.from_array(small, tensor.name))
            found.add(digest)
    if found != tables:
        raise LookupError("an embedding is not there any more")
    return Runnable(proto, None, None, model.weights)


def compare(original: Original, case: _Case, got: list[Array]) -> str:
    """What is wrong with a result's outputs; empty where nothing is."""
    for i, name in enumerate(original.outputs):
        originals = [o[i] for o in case.originals]
        truth = case.truth[i] if case.truth is not None else None
        reason = _differs(truth, originals, got[i], original.precision, original.mixes)
        if reason:
            return f"{case.name} inputs, output '{name}': {reason}"
    return ""


def _differs(truth: Array | None, originals: list[Array], got: Array, precision: int, mixes: bool) -> str:
    expected = np.asarray(originals[0])
    if got.shape != expected.shape:
        return f"shape {list(expected.shape)} became {list(got.shape)}"
    if not is_float(expected):
        return "" if np.array_equal(got, expected) else "differs"
    owns = [np.asarray(o).astype(np.float64) for o in originals]
    measure = owns[0] if truth is None or truth.shape != expected.shape else truth.astype(np.float64)
    result = got.astype(np.float64)
    known = np.all([np.isfinite(v) for v in (measure, *owns)], axis=0)
    if not np.isfinite(result[known]).all():
        return "NaN or infinity where the original has a number"
    if (np.isnan(measure) & np.isnan(owns[0]) & ~np.isnan(result)).any():
        return "a number where the original has NaN"
    if not known.any():
        return ""

    def per_row(values: Array) -> Array:
        values = np.where(known, np.abs(values), 0)
        return np.asarray(values.max(axis=None if mixes or not values.ndim else -1, keepdims=True))

    with np.errstate(invalid="ignore", over="ignore"):
        size, error = per_row(measure), per_row(result - measure)
        own = np.max([per_row(o - measure) for o in owns], axis=0)
    kind = float_type(precision)
    unit = ulp(size, kind)
    allowed = np.maximum(2 * own, BAR_ULPS[precision][mixes] * unit)
    if (error <= allowed).all():
        return ""
    worst = int((error / allowed).argmax())
    ulps, limit = (float((v / unit).ravel()[worst]) for v in (error, allowed))
    share = float((error / np.maximum(size, kind.smallest)).ravel()[worst])
    return f"off by {ulps:.3g} ULP ({share:.2%}) of the row's largest value, allowed {limit:.3g}"


def judge(original: Original, path: str, *, library: bool) -> dict[str, Any]:
    """The verdict on one result.

    Args:
        original: what it was made from.
        path: the result.
        library: also run it with this project's kernels.

    Returns:
        "verdict": "right", "wrong", "not running" or "not judged"; "reason", why, in a sentence.
    """
    try:
        model = Runnable.of(Path(path))
    except Exception as error:
        return {"verdict": "not running", "reason": f"cannot be read: {first_line(error)}"}
    outputs = [o.name for o in model.proto.graph.output]
    if missing := [name for name in original.outputs if name not in outputs]:
        return {"verdict": "wrong", "reason": f"the output '{missing[0]}' is gone"}
    order = [outputs.index(name) for name in original.outputs]
    inputs = {v.name for v in model.proto.graph.input}
    notes = []
    for with_library in (False, True) if library else (False,):
        for case in original.cases:
            try:
                runnable = shrunk(model, case.tables) if case.tables else model
            except LookupError as error:
                notes.append(f"{case.name} inputs: {error}")
                continue
            try:
                # the first of two causes is the optimizer's absence; the second says more
                session = (_sessions(runnable, library=with_library) or [Runner(runnable, library=with_library)])[0]
                got = session({k: v for k, v in case.feeds.items() if k in inputs})
            except Exception as error:
                if not original.loads:  # by definition alone: nothing says that onnxruntime should run it
                    return {"verdict": "not judged", "reason": first_line(error)}
                return {"verdict": "not running", "reason": first_line(error)}
            reason = compare(original, case, [got[i] for i in order])
            if reason:
                return {"verdict": "wrong", "reason": ("with the library: " if with_library else "") + reason}
    if not original.cases:
        return {"verdict": "not judged", "reason": "the original runs nowhere here"}
    return {"verdict": "right", "reason": "; ".join(notes)}


def worker() -> Callable[..., dict[str, Any]]:
    """The handler of the judge's process: see :mod:`benchmarks.peers.worker`. It keeps the last original."""
    importlib.import_module("onnxruntime")  # an ImportError now says more than a failure at every model
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # NaN and infinity are fed on purpose
    kernels = not library_problem()
    last: dict[str, Original] = {}

    def handle(original: str, result: str = "", library: bool = False, run: bool = True) -> dict[str, Any]:
        if not result:
            last.clear()
            last[original] = judged = Original(original)
            return {"usable": judged.loads or _valid(original), "inputs": [c.name for c in judged.cases]}
        counted = {"norms": count_norms(onnx.load(result, load_external_data=False))}
        if not run:
            return counted | {"verdict": "not judged", "reason": "the original fails the judge"}
        if original not in last:
            last.clear()
            last[original] = Original(original)
        return counted | judge(last[original], result, library=library and kernels)

    return handle
