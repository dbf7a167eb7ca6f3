"""The graphs that are timed: chains of one norm, in our operators, in onnxruntime's own, or in elementary ones."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, helper

from benchmarks.placement import onnxruntime_affinities
from rmsnorm_deploy import op
from rmsnorm_deploy.run.registering import register

DTYPES: dict[str, tuple[int, Any]] = {
    "float32": (TensorProto.FLOAT, np.float32),
    "float16": (TensorProto.FLOAT16, np.float16),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
}
EPSILON = 1e-6
FUSED = {op.Op.RMS_NORM: "SimplifiedLayerNormalization", op.Op.ADD_RMS_NORM: "SkipSimplifiedLayerNormalization"}
LAYER_NORM = "LayerNormalization"
DECOMPOSED = "decomposed"
FUSIONS = ["SimplifiedLayerNormFusion", "LayerNormFusion", "SkipLayerNormFusion"]
"""onnxruntime's optimizers that would make one node of the decomposed form."""
SPIN_US = 500
"""How long an idle thread of a session waits for more work before it sleeps."""
OPSETS = [helper.make_opsetid(d, v) for d, v in (("", 18), (op.DOMAIN, op.VERSION), ("com.microsoft", 1))]


@dataclasses.dataclass(frozen=True)
class Chain:
    """A model whose nodes are one norm, again and again.

    Attributes:
        form: an operator's name, or "decomposed".
        rows: of X; the other dimension is ``size``.
        size: number of features.
        dtype: of everything.
        length: number of norms.
        residual: with the addition: each norm's sum is the next one's residual, as in a transformer.
        partial_size: of GeneralRMSNorm.
    """

    form: str
    rows: int
    size: int
    dtype: str
    length: int
    residual: bool = False
    partial_size: int | None = None

    @property
    def inputs(self) -> list[str]:
        """Names of the graph's inputs, all of X's shape."""
        return ["x0", "s0"] if self.residual else ["x0"]

    @property
    def outputs(self) -> list[str]:
        """Names of the graph's outputs, as many."""
        return [f"x{self.length}", f"s{self.length}"] if self.residual else [f"x{self.length}"]


def _norm(chain: Chain, i: int) -> list[NodeProto]:
    """The nodes of norm ``i``: x and s of that number go in, those of the next come out."""
    x, s, y, total = f"x{i}", f"s{i}", f"x{i + 1}", f"s{i + 1}"
    if chain.form in list(op.Op):
        kind = op.Op(chain.form)
        # The scale is applied in float32, as onnxruntime's fused operators do.
        attributes: dict[str, Any] = dict(
            op.NormParameters(
                kind,
                DTYPES[chain.dtype][0],
                epsilon=EPSILON,
                scale_type=TensorProto.FLOAT,
                partial_size=chain.partial_size,
            ).to_attributes()
        )
        given = {"X": x, "residual": s, "scale": "scale", "bias": "neutral"}
        outputs = [y, total][: len(kind.outputs)]
        return [helper.make_node(kind.value, [given[n] for n in kind.inputs], outputs, domain=op.DOMAIN, **attributes)]
    if chain.form == FUSED[op.Op.RMS_NORM]:
        return [helper.make_node(chain.form, [x, "scale"], [y], axis=-1, epsilon=EPSILON, stash_type=1)]
    if chain.form == FUSED[op.Op.ADD_RMS_NORM]:
        outputs = [y, "", "", total]
        return [helper.make_node(chain.form, [x, s, "scale"], outputs, domain="com.microsoft", epsilon=EPSILON)]
    if chain.form == LAYER_NORM:
        return [helper.make_node(chain.form, [x, "scale", "bias"], [y], axis=-1, epsilon=EPSILON, stash_type=1)]
    return _decomposed(chain, i)


def _decomposed(chain: Chain, i: int) -> list[NodeProto]:
    """What PyTorch's exporter writes of a Llama norm: float32 inside, the scale applied in the model's type."""
    nodes: list[NodeProto] = []

    def add(op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"{op_type.lower()}_{i}_{len(nodes)}"
        nodes.append(helper.make_node(op_type, list(inputs), [name], **attributes))
        return name

    wide = chain.dtype == "float32"
    x = add("Add", f"x{i}", f"s{i}", output=f"s{i + 1}") if chain.residual else f"x{i}"
    if not wide:
        x = add("Cast", x, to=TensorProto.FLOAT)
    mean = add("ReduceMean", add("Pow", x, "two"), "axes", keepdims=1)
    inverse = add("Reciprocal", add("Sqrt", add("Add", mean, "epsilon")))
    normalised = add("Mul", x, inverse)
    if not wide:
        normalised = add("Cast", normalised, to=DTYPES[chain.dtype][0])
    add("Mul", normalised, "scale", output=f"x{i + 1}")
    return nodes


def build(chain: Chain) -> ModelProto:
    """The chain as a model."""
    data_type, numpy_type = DTYPES[chain.dtype]
    shape = [chain.rows, chain.size]
    nodes = [node for i in range(chain.length) for node in _norm(chain, i)]
    used = {name for node in nodes for name in node.input}
    rng = np.random.default_rng(0)
    vectors = {
        "scale": rng.random(chain.size) + 0.5,
        "bias": 0.1 * rng.standard_normal(chain.size),
        "neutral": np.full(chain.size, -0.0),
    }
    constants = [
        helper.make_tensor(name, data_type, [chain.size], value.astype(numpy_type).tobytes(), raw=True)
        for name, value in vectors.items()
    ]
    constants.append(helper.make_tensor("two", TensorProto.FLOAT, [], [2.0]))
    constants.append(helper.make_tensor("epsilon", TensorProto.FLOAT, [], [EPSILON]))
    constants.append(helper.make_tensor("axes", TensorProto.INT64, [1], [-1]))
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info(name, data_type, shape) for name in chain.inputs],
        [helper.make_tensor_value_info(name, data_type, shape) for name in chain.outputs],
        [constant for constant in constants if constant.name in used],
    )
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=9)


def _options(threads: int) -> Any:
    options = ort.SessionOptions()
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # By default the idle threads of a session spin for longer than 30 ms, on the cores of the session whose turn it is.
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_US))
    if tuple(int(part) for part in ort.__version__.split(".")[:2]) < (1, 26):  # which do not know that entry
        options.add_session_config_entry("session.force_spinning_stop", "1")
    if affinities := onnxruntime_affinities(threads):
        options.add_session_config_entry("session.intra_op_thread_affinities", affinities)
    register(options)  # for every contestant, so that the options are the same
    return options


def session(chain: Chain, threads: int) -> Any:
    """An onnxruntime session of the chain; all of them have the same options.

    Raises:
        Exception: onnxruntime has no kernel for one of the nodes.
    """
    off = FUSIONS if chain.form == DECOMPOSED else None
    return ort.InferenceSession(
        build(chain).SerializeToString(), _options(threads), providers=["CPUExecutionProvider"], disabled_optimizers=off
    )


def optimized_operators(chain: Chain) -> Counter[str]:
    """The operators that onnxruntime runs for the chain, once its optimizers are done."""
    with tempfile.TemporaryDirectory() as folder:
        options = _options(1)
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        off = FUSIONS if chain.form == DECOMPOSED else None
        ort.InferenceSession(
            build(chain).SerializeToString(), options, providers=["CPUExecutionProvider"], disabled_optimizers=off
        )
        return Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)


def check_not_fused(chain: Chain) -> None:
    """See that a decomposed chain is still one after onnxruntime's optimizers.

    Raises:
        AssertionError: onnxruntime made other nodes of it, so it would be no baseline.
    """
    found = optimized_operators(chain)
    fused = sorted(name for name in found if "Normalization" in name)
    if fused or found["ReduceMean"] != chain.length:
        raise AssertionError(f"onnxruntime fused the decomposed chain: {dict(found)}")
