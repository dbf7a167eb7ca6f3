"""A fused model with norms everywhere, and what tools do to such a file."""

import numpy as np
import onnx
import onnx.compose
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy
from rmsnorm_deploy.op import DOMAIN

KINDS = {np.dtype("float32"): TensorProto.FLOAT, np.dtype("float16"): TensorProto.FLOAT16}


def _norm(x, y, w, opset, outside=False):
    """y = x / sqrt(mean(x ** 2) + epsilon) * w; with ``outside``, epsilon is added to the root."""
    node, t = helper.make_node, [f"{y}_{k}" for k in range(5)]
    attributes = {"axes": [-1]} if opset < 18 else {}
    kinds = [("Sqrt", "sqrt"), ("Add", "add")] if outside else [("Add", "add"), ("Sqrt", "sqrt")]
    inputs = {"Add": ["epsilon"], "Sqrt": []}
    return [
        node("Pow", [x, "two"], [t[0]], f"{y}_pow"),
        node("ReduceMean", [t[0], *(["axes"] if opset >= 18 else [])], [t[1]], f"{y}_mean", keepdims=1, **attributes),
        *(node(k, [t[1 + i], *inputs[k]], [t[2 + i]], f"{y}_{n}") for i, (k, n) in enumerate(kinds)),
        node("Div", [x, t[3]], [t[4]], f"{y}_div"),
        node("Mul", [t[4], w], [y], f"{y}_mul"),
    ]


def exported(opset=18, dtype="float32", branches=True):
    """Norms of all three operators, two of them in the branches of an If; x, r and c go in, y comes out."""
    dtype = np.dtype(dtype)
    kind = KINDS[dtype]
    info, node = helper.make_tensor_value_info, helper.make_node
    shape = ["b", 5, 16]

    def branch(name):
        nodes = [node("Sin", ["g"], [f"{name}_sin"], f"{name}_sin"), *_norm(f"{name}_sin", f"{name}_y", "wi", opset)]
        return helper.make_graph(nodes, name, [], [info(f"{name}_y", kind, shape)])

    nodes = [
        *_norm("x", "a", "w", opset),
        node("Add", ["a", "r"], ["s"], "residual"),
        *_norm("s", "n", "w", opset),
        *_norm("n", "g", "w", opset, outside=True),
        node("Abs", ["w"], ["wi"], "scale_of_branches"),  # onnx.compose loses initializers in subgraphs
        node("If", ["c"], ["i"], "if", then_branch=branch("then"), else_branch=branch("else"))
        if branches
        else node("Where", ["c", "g", "g"], ["i"], "where"),
        node("Cos", ["i"], ["y"], "cos"),
    ]
    weights = {
        "w": np.linspace(0.5, 2, 16).astype(dtype),
        "epsilon": np.array(1e-5, dtype),
        "two": np.array(2, dtype),
    } | ({"axes": np.array([-1])} if opset >= 18 else {})
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", kind, shape), info("r", kind, shape), info("c", TensorProto.BOOL, [])],
        [info("y", kind, shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
        value_info=[info(name, kind, shape) for name in ("a", "s", "n", "t", "g", "i")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def feeds_of(model):
    """Numbers for each input, in its type."""
    rng = np.random.default_rng(0)
    types = {i.name: helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in model.graph.input}
    shapes = {name: () if dtype.kind == "b" else (2, 5, 16) for name, dtype in types.items()}
    return {name: np.asarray(rng.standard_normal(shapes[name])).astype(dtype) for name, dtype in types.items()}


def ours(root):
    """The nodes of our domain, in the graph and its subgraphs."""
    found = []
    for node in root.node:
        found += [node] if node.domain.split(".")[0] == DOMAIN else []
        for attribute in node.attribute:
            found += ours(attribute.g) if attribute.HasField("g") else []
    return found


def saved_by_onnxruntime(model, path, level="ORT_ENABLE_BASIC", library=False):
    """What onnxruntime writes as its optimised model."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(path)
    if library:
        rmsnorm_deploy.register(options)
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


# -- what tools do ----------------------------------------------------------------------------------------------------


def without_bodies(model):
    """As onnx's version converter leaves it: neither functions nor the import of their domain."""
    del model.functions[:]
    kept = [o for o in model.opset_import if o.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    return model


def without_bodies_and_an_odd_import(model):
    """As onnxruntime leaves it where the library is registered."""
    del model.functions[:]
    next(o for o in model.opset_import if o.domain == DOMAIN).version = 1000
    return model


def without_one_body(model):
    del model.functions[0]
    return model


def prefixed(model):
    return onnx.compose.add_prefix(model, "a_", rename_inputs=False, rename_outputs=False)


def prefixed_twice(model):
    return prefixed(prefixed(model))


def prefixed_without_bodies(model):
    return without_bodies(prefixed(model))


def stale_types(model):
    """As converters of types leave it: the attributes say float16, the values are of another type."""
    for node in ours(model.graph):
        for a in node.attribute:
            if a.name in ("output_type", "scale_type"):
                a.i = TensorProto.FLOAT16
    return model


def without_attributes(model):
    """All that have their default are gone."""
    for node in ours(model.graph):
        kept = [a for a in node.attribute if a.name in ("axes", "epsilon", "epsilon_outside")]
        del node.attribute[:]
        node.attribute.extend(kept)
    return model


def bodies_of_another_opset(model):
    for function in model.functions:
        next(o for o in function.opset_import if not o.domain).version -= 1
    return model


def without_the_sum(model):
    """A name that nobody reads is dropped by some optimisers."""
    for node in ours(model.graph):
        if node.op_type == "AddRMSNorm":
            node.output[1] = ""
    return model


IMPORT = "the imported version of rmsnorm_deploy"
DAMAGES = {
    "without_bodies": (without_bodies, f"bodies of 5 norms, {IMPORT}"),
    "odd_import": (without_bodies_and_an_odd_import, f"bodies of 5 norms, {IMPORT}"),
    "without_one_body": (without_one_body, "body of 1 norm"),
    "prefixed": (prefixed, "bodies of 2 norms, names of 3 norms"),
    "prefixed_twice": (prefixed_twice, "bodies of 2 norms, names of 3 norms"),
    "prefixed_without_bodies": (prefixed_without_bodies, f"bodies of 5 norms, names of 3 norms, {IMPORT}"),
    "stale_types": (stale_types, "types of 5 norms"),
    "without_attributes": (without_attributes, "attributes of 5 norms"),
    "bodies_of_another_opset": (bodies_of_another_opset, "bodies of 5 norms"),
    "without_the_sum": (without_the_sum, "outputs of 1 norm"),
}
"""Each damage, and what a report says of it."""
