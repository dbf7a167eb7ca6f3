"""Types and shapes that a model's file does not spell out, from onnx's shape inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSequence

import onnx
import onnx_ir as ir

from rmsnorm_deploy.model import many_dimensions
from rmsnorm_deploy.model.calls import Calls
from rmsnorm_deploy.model.equations import malformed_equation
from rmsnorm_deploy.model.graphs import AI_ONNX, forget_negative_sizes, graphs_of, nodes_of, subgraphs
from rmsnorm_deploy.model.skeleton import reference
from rmsnorm_deploy.op import is_ours
from rmsnorm_deploy.recognise import long_vectors
from rmsnorm_deploy.recognise.bindings import Bindings, bind
from rmsnorm_deploy.recognise.computed_shapes import state_constants
from rmsnorm_deploy.recognise.reshaped import state_shapes

Dim = int | str | None
"""A dimension: its size, the symbol it is known by, or None."""
Shape = tuple[Dim, ...]
Known = tuple[ir.DataType | None, Shape | None]

_NOTHING: Known = (None, None)


def dim(dim: int | ir.SymbolicDim) -> Dim:
    """A dimension of an ``onnx_ir.Shape`` as we write it; one that is said to be negative is not known."""
    if not isinstance(dim, int):
        return dim.value
    return dim if dim >= 0 else None


class Inferred:
    """Type and shape of the values of a model, as far as they can be inferred. The model is not changed.

    Inference runs when it is first asked for: of a model that carries all its shapes, as exporters with static shapes
    write them, nobody asks.

    Args:
        model: the model.
        skeleton: makes the same model as a proto, without weights; it becomes this object's to change.
        bindings: attributes of the local functions, for each graph of theirs.

    Attributes:
        symbols: the names of dimensions that inputs have. All others were made up by tools, or by inference.
    """

    def __init__(
        self, model: ir.Model, skeleton: Callable[[], onnx.ModelProto], bindings: Bindings | None = None
    ) -> None:
        self._model = model
        self._bindings = bindings or {}
        self._skeleton = skeleton
        self._pairs: list[tuple[ir.Graph, ir.Node, str, int]] = []
        self._same: dict[str, str] = {}
        self._protos: dict[ir.Graph, onnx.GraphProto] = {}
        self._known: dict[ir.Graph, dict[str, onnx.ValueInfoProto]] = {}
        self._ready = False
        self.symbols: frozenset[str] = frozenset()

    def pair(self, graph: ir.Graph, holder: ir.Node, attribute: str, index: int) -> None:
        """Make a subgraph known: the one that ``holder`` carries as ``attribute`` (number ``index`` of a list)."""
        self._pairs.append((graph, holder, attribute, index))

    def of(self, value: ir.Value) -> Known:
        """Type and shape of ``value``."""
        if not self._ready:
            self._run()
        return self._of(value)

    def _run(self) -> None:
        self._ready = True
        skeleton = self._skeleton()
        self.symbols = _without_made_up_names(skeleton)
        _stand_in(skeleton.graph, self._same)
        for part in (*skeleton.functions, *list(graphs_of(skeleton))):
            _stand_in_for_ours(part.node)
        for function in [f for f in skeleton.functions if is_ours(f.domain, f.name)]:
            skeleton.functions.remove(function)  # our own bodies carry nothing to recognise, and nothing calls them now
        for graph in graphs_of(skeleton.graph):
            state_constants(graph)
            state_shapes(graph)
        functions = Calls(skeleton) if skeleton.functions else None
        if functions is not None and not functions.is_bounded:
            functions = None
            del skeleton.functions[:]  # of their calls, which stay, nothing is known then
        self._protos[self._model.graph] = _infer(skeleton).graph
        if functions is not None and functions.are_bounded:
            self._functions(self._model, functions)
        for pair in self._pairs:
            self._find(*pair)

    def _find(self, graph: ir.Graph, holder: ir.Node, attribute: str, index: int) -> None:
        parent = self._protos.get(holder.graph)  # type: ignore[arg-type]
        if parent is None:
            return
        outputs = [o.name for o in holder.outputs]
        for node in parent.node:
            if list(node.output) == outputs:
                for name, i, proto in subgraphs(node):
                    if (name, i) == (attribute, index):
                        self._protos[graph] = proto
                return

    def _of(self, value: ir.Value) -> Known:
        producer = value.producer()
        graph = producer.graph if producer is not None else value.graph
        if not isinstance(graph, ir.Graph) or graph not in self._protos:
            return _NOTHING
        known = self._known.get(graph)
        if known is None:
            proto = self._protos[graph]
            known = self._known[graph] = {v.name: v for v in (*proto.value_info, *proto.input, *proto.output)}
        name = value.name or ""
        dtype, shape = read_value_info(known.get(name) or known.get(self._same.get(name, "")))
        if shape is None:
            return dtype, None
        # a name of this inference's own must not be taken for one that the file has
        return dtype, tuple(f"~{d}" if isinstance(d, str) and d not in self.symbols else d for d in shape)

    def _functions(self, model: ir.Model, functions: Calls) -> None:
        """Types inside local functions, from their call sites, dimension by dimension where all of these agree."""
        calls: dict[tuple[str, str, str], list[ir.Node]] = {}
        for root in (model.graph, *(f.graph for f in model.functions.values())):
            for node in root.all_nodes():
                calls.setdefault(node.op_identifier(), []).append(node)
        for identifier in functions.order:
            function, sites = model.functions.get(identifier), calls.get(identifier)
            if function is None or not sites:
                continue
            body = functions.functions[identifier]
            inputs = [self._common(sites, i) for i in range(len(body.input))]
            if any(known is not None and known != _NOTHING for known in inputs):
                self._function(function, body, inputs, functions.reached(identifier))

    def _function(
        self,
        function: ir.Function,
        body: onnx.FunctionProto,
        inputs: list[Known | None],
        called: list[onnx.FunctionProto],
    ) -> None:
        graph = onnx.GraphProto(name=body.name, node=body.node)
        bind(graph, self._bindings.get(function.graph, {}))
        graph.output.extend(onnx.ValueInfoProto(name=n) for n in body.output)
        graph.input.extend(_value_info(n, *(known or _NOTHING)) for n, known in zip(body.input, inputs, strict=True))
        inferred = _infer(
            onnx.ModelProto(
                graph=graph, ir_version=self._model.ir_version or 8, opset_import=body.opset_import, functions=called
            )
        ).graph
        self._protos[function.graph] = inferred

    def _common(self, calls: list[ir.Node], index: int) -> Known | None:
        """What all call sites agree on."""
        common: Known | None = None
        for call in calls:
            value = call.inputs[index] if index < len(call.inputs) else None
            if value is None:
                return None
            dtype, shape = self._of(value)
            if value.const_value is not None:
                tensor = value.const_value
                dtype, shape = tensor.dtype, tuple(int(d) for d in tensor.shape)  # type: ignore[arg-type]
            dtype = value.dtype or dtype
            shape = tuple(dim(d) for d in value.shape) if value.shape is not None else shape
            common = (dtype, shape) if common is None else _merge(common, (dtype, shape))
        return common


def _without_made_up_names(model: onnx.ModelProto) -> frozenset[str]:
    """Take from values the names of dimensions that no input has, so that inference finds out what it can prove.

    Returns:
        The names that inputs have.
    """
    graphs = list(graphs_of(model.graph))
    kept = {d.dim_param for g in graphs for v in g.input for d in v.type.tensor_type.shape.dim if d.dim_param}
    named = []
    for graph in graphs:
        values = (*graph.value_info, *graph.output)
        stated = [(v.name, [d for d in v.type.tensor_type.shape.dim if d.dim_param]) for v in values]
        if not any(dims for _, dims in stated):
            continue
        # what onnx knows nothing of keeps its names: nothing could be found out
        opaque = {name for node in graph.node if node.domain not in AI_ONNX for name in node.output}
        for name, dims in stated:
            if name in opaque:
                kept.update(d.dim_param for d in dims)
            else:
                named += dims
    for d in named:
        if d.dim_param not in kept:
            d.ClearField("dim_param")
    return frozenset(kept)


def read_value_info(info: onnx.ValueInfoProto | None) -> Known:
    """Type and shape that ``info`` states; nothing for None."""
    if info is None or not info.type.HasField("tensor_type"):
        return _NOTHING
    tensor = info.type.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return dtype, None
    return dtype, tuple(
        dim(d.dim_value) if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim
    )


def _merge(a: Known, b: Known) -> Known:
    dtype = a[0] if a[0] == b[0] else None
    if a[1] is None or b[1] is None or len(a[1]) != len(b[1]):
        return dtype, None
    return dtype, tuple(x if x == y else None for x, y in zip(a[1], b[1], strict=True))


_LIKE_FIRST = frozenset(
    ("GroupQueryAttention", "MultiHeadAttention", "RotaryEmbedding", "Gelu", "FastGelu", "QuickGelu", "BiasGelu")
)
"""Operators of onnxruntime whose first output has the type and shape of their first input."""
_SKIP = ("SkipSimplifiedLayerNormalization", "SkipLayerNormalization")


def _stand_in(graph: onnx.GraphProto, same: dict[str, str]) -> None:
    """In the copy, put standard operators of equal type and shape where onnx does not know onnxruntime's own ones.

    A model that onnxruntime or its tools have optimised is full of these, and inference would end at the first.
    A second output of the first one's type goes into ``same``, and its readers read the first.
    """
    for node in _known_to_onnxruntime(graph):
        inputs: list[str] = []
        if node.op_type == "SimplifiedLayerNormalization":
            inputs, kind = [node.input[1], node.input[0]], "Mul"  # the output has the scale's type
        elif node.op_type in _SKIP:
            inputs, kind = list(node.input[:2]), "Add"
            if len(node.output) > 3 and node.output[3]:
                same[node.output[3]] = node.output[0]
        elif node.op_type in _LIKE_FIRST:
            inputs, kind = [node.input[0]], "Identity"
        elif node.op_type == "FusedMatMul":
            if not any(a.i for a in node.attribute if a.name.startswith("trans")):
                inputs, kind = list(node.input[:2]), "MatMul"
        elif node.op_type == "MatMulNBits" and len(node.input) > 2:
            types = {t.name: t.data_type for t in graph.initializer}
            sizes = {a.name: a.i for a in node.attribute}
            if node.input[2] in types:
                weight = f"{node.output[0]}//weight"
                dims = [sizes.get("K", 0), sizes.get("N", 0)]
                graph.initializer.append(reference(weight, types[node.input[2]], dims))
                inputs, kind = [node.input[0], weight], "MatMul"
        if inputs:
            node.CopyFrom(onnx.NodeProto(op_type=kind, input=inputs, output=[node.output[0]], name=node.name))
    if same:
        for node in graph.node:
            for i, name in enumerate(node.input):
                if name in same:
                    node.input[i] = same[name]


def _stand_in_for_ours(nodes: MutableSequence[onnx.NodeProto]) -> None:
    """In the copy, put Identity where our nodes stand: a file may lack their bodies, and inference would end there."""
    places = [i for i, node in enumerate(nodes) if is_ours(node.domain, node.op_type) and node.input]
    for i in reversed(places):
        node = nodes[i]
        named = [output for output in node.output if output]
        for output in reversed(named[1:]):
            nodes.insert(i + 1, onnx.NodeProto(op_type="Identity", input=node.input[:1], output=[output]))
        node.CopyFrom(onnx.NodeProto(op_type="Identity", input=node.input[:1], output=named[:1], name=node.name))


def _known_to_onnxruntime(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        if node.domain == "com.microsoft" or node.op_type == "SimplifiedLayerNormalization":
            yield node
        elif node.domain == "ai.onnx":
            node.domain = ""  # the other name of the same domain, which inference does not know


def _value_info(name: str, dtype: ir.DataType | None, shape: Shape | None) -> onnx.ValueInfoProto:
    if dtype is None:
        return onnx.ValueInfoProto(name=name)
    return onnx.helper.make_tensor_value_info(name, int(dtype), shape)


def _infer(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Shape inference that gives what it can: a model that it rejects keeps the shapes of its file."""
    if malformed_equation(nodes_of(proto)) is not None:
        return proto  # a model in memory, which nobody has looked at: onnx would not come to an end
    forget_negative_sizes(proto)
    many_dimensions.leave_out(proto)
    found = _inferred(proto, data=False)
    if found is None:
        return proto
    followed = long_vectors.followable(proto, found)
    if followed is None:
        return found
    if followed is not proto:
        _without_made_up_names(followed)  # those of the first run
    return _inferred(followed, data=True) or found


def _inferred(proto: onnx.ModelProto, data: bool) -> onnx.ModelProto | None:
    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=data)
    except Exception:  # onnx raises half a dozen unrelated types here
        return None
