"""One builder for each alternative of the grammar, and their product: a norm as a program and as a meaning."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import onnx

from tests.support.spellings.graph import I64, B, D, F, Graph, H, V

# Each table maps the name of a spelling to its builder. A new spelling is one entry here and one alternative in the
# file of its stage in rmsnorm_deploy/recognise.


def _n(g: Graph, like: V, n: int) -> V:
    return g.constant(n, like.dtype)


SQUARES = {
    "pow": lambda g, x: x**2.0,
    "mul": lambda g, x: x * x,
    "abs_pow": lambda g, x: g.op("Abs", x) ** 2.0,
    "pow_one_element": lambda g, x: g.op("Pow", x, g.constant([2.0], x.dtype)),
}

# (graph, x, square builder, axes, n, keepdims) -> value, what it is: "mean", "sum" (x / root is multiplied by sqrt(n)),
# "root_n" (x / root is divided by the root of 1/n), "l2", "normalised" (x / norm, to be multiplied by sqrt(n))
MEANS = {
    "mean": lambda g, x, square, axes, n, k: (g.reduce("ReduceMean", square(g, x), axes, k), "mean"),
    "mean_noop": lambda g, x, square, axes, n, k: (g.reduce("ReduceMean", square(g, x), axes, k, True), "mean"),
    "sum_div_n": lambda g, x, square, axes, n, k: (g.reduce("ReduceSum", square(g, x), axes, k) / float(n), "mean"),
    "sum_mul_inverse_n": lambda g, x, square, axes, n, k: (
        g.reduce("ReduceSum", square(g, x), axes, k) * (1.0 / n),
        "mean",
    ),
    "inverse_n_mul_sum": lambda g, x, square, axes, n, k: (
        (1.0 / n) * g.reduce("ReduceSum", square(g, x), axes, k),
        "mean",
    ),
    "sum_square_div_n": lambda g, x, square, axes, n, k: (g.reduce("ReduceSumSquare", x, axes, k) / float(n), "mean"),
    "mean_in_double": lambda g, x, square, axes, n, k: (
        g.cast(g.reduce("ReduceMean", square(g, g.cast(x, D)), axes, k), x.dtype),
        "mean",
    ),
    "sum": lambda g, x, square, axes, n, k: (g.reduce("ReduceSum", square(g, x), axes, k), "sum"),
    "sum_root_n": lambda g, x, square, axes, n, k: (g.reduce("ReduceSum", square(g, x), axes, k), "root_n"),
    "l2": lambda g, x, square, axes, n, k: (g.reduce("ReduceL2", x, axes, k), "l2"),
}

# the same, of the last dimension only
LAST_AXIS_MEANS = {
    "einsum_div_n": lambda g, x, square, axes, n, k: (
        KEEPDIMS["unsqueeze"][1](g, g.op("Einsum", x, x, equation="...i,...i->...") / float(n), axes, x, ()),
        "mean",
    ),
    "lp_normalization": lambda g, x, square, axes, n, k: (g.op("LpNormalization", x, axis=-1, p=2), "normalised"),
}


def _by_axis(shape, axes, reduced, others) -> list[int]:
    """``reduced`` at ``axes``, ``others`` elsewhere."""
    inside = {a % len(shape) for a in axes}
    return [reduced[i] if i in inside else others[i] for i in range(len(shape))]


def _expanded(g: Graph, v: V, sizes: V) -> V:
    """torch.Tensor.expand, as TorchScript's exporter writes it: a size of -1 is one that stays."""
    rank = g.constant([len(g.feeds["x"][1])], I64)
    ones = g.op("ConstantOfShape", rank, dtype=I64, value=onnx.helper.make_tensor("", I64, [1], [1]))
    stays = g.op("Equal", sizes, ones * -1, dtype=I64)
    return g.op("Expand", v, g.op("Where", stays, ones, sizes, dtype=I64))


# keepdims of the reduction, and how its dimensions come back: (graph, statistic, axes, x, shape of x) -> statistic
KEEPDIMS = {
    "kept": (1, lambda g, v, axes, x, shape: v),
    "unsqueeze": (0, lambda g, v, axes, x, shape: g.along("Unsqueeze", v, axes)),
    "reshape": (
        0,
        lambda g, v, axes, x, shape: g.op(
            "Reshape",
            v,
            g.constant([1 if i in {a % len(shape) for a in axes} else d for i, d in enumerate(shape)], I64),
        ),
    ),
    "squeeze": (1, lambda g, v, axes, x, shape: g.along("Unsqueeze", g.along("Squeeze", v, axes), axes)),
    "expand": (1, lambda g, v, axes, x, shape: g.op("Expand", v, g.op("Shape", x, dtype=I64))),
    "expand_minus_one": (
        1,
        lambda g, v, axes, x, shape: _expanded(g, v, g.constant(_by_axis(shape, axes, shape, [-1] * len(shape)), I64)),
    ),
    "tile": (
        1,
        lambda g, v, axes, x, shape: g.op("Tile", v, g.constant(_by_axis(shape, axes, shape, [1] * len(shape)), I64)),
    ),
}

# epsilon on the mean square
INSIDE = {
    "add": lambda g, ms, e: ms + e,
    "add_left": lambda g, ms, e: e + ms,
    "sub_negative": lambda g, ms, e: ms - (-e),
    "add_one_element": lambda g, ms, e: g.op("Add", ms, g.constant([e], ms.dtype)),
    "none": lambda g, ms, e: ms,
}

# clamps of the mean square or the RMS
CLAMPS = {
    "max": lambda g, v, c: g.op("Max", v, g.constant(c, v.dtype)),
    "max_left": lambda g, v, c: g.op("Max", g.constant(c, v.dtype), v),
    "clip": lambda g, v, c: g.op("Clip", v, g.constant(c, v.dtype)),
    "min_of_negative": lambda g, v, c: g.op("Neg", g.op("Min", g.op("Neg", v), g.constant(-c, v.dtype))),
    "min_of_inverse": lambda g, v, c: 1.0 / g.op("Min", 1.0 / v, g.constant(1 / c, v.dtype)),
    "clip_of_inverse": lambda g, v, c: g.op(
        "Reciprocal", g.op("Clip", g.op("Reciprocal", v), g.constant(0.0, v.dtype), g.constant(1 / c, v.dtype))
    ),
}

# from the mean square and x to the normalised value; ``early`` is applied to x or to the inverse
NORMALISE = {
    "sqrt_div": lambda g, x, ms: x / g.op("Sqrt", ms),
    "sqrt_reciprocal": lambda g, x, ms: x * g.op("Reciprocal", g.op("Sqrt", ms)),
    "reciprocal_left": lambda g, x, ms: g.op("Reciprocal", g.op("Sqrt", ms)) * x,
    "one_div_sqrt": lambda g, x, ms: x * (1.0 / g.op("Sqrt", ms)),
    "reciprocal_sqrt": lambda g, x, ms: x * g.op("Sqrt", g.op("Reciprocal", ms)),
    "pow_minus_half": lambda g, x, ms: x * ms ** (-0.5),
    "pow_half": lambda g, x, ms: x / ms**0.5,
    "pow_half_pow_minus_one": lambda g, x, ms: x * (ms**0.5) ** (-1.0),
    "abs_of_root": lambda g, x, ms: x / g.op("Abs", g.op("Sqrt", ms)),
    "negative_twice": lambda g, x, ms: x / (-1.0 * g.op("Neg", g.op("Sqrt", ms))),
    "zero_minus": lambda g, x, ms: x * g.op("Abs", 1.0 / g.op("Sub", g.constant(0.0, ms.dtype), g.op("Sqrt", ms))),
    "reciprocal_times_one": lambda g, x, ms: x * (g.op("Reciprocal", g.op("Sqrt", ms)) * 1.0),
}

# where the scale comes in
SCALES = ("right", "left", "none", "one_plus", "into_x", "into_inverse", "scalar", "expanded", "einsum", "einsum_left")

NOISE = {
    "none": lambda g, v: v,
    "identity": lambda g, v: g.op("Identity", v),
    "cast": lambda g, v: g.cast(v, v.dtype),
    "times_one": lambda g, v: v * 1.0,
    "one_times": lambda g, v: 1.0 * v,
    "dropout": lambda g, v: g.op("Dropout", v),
    "plus_identity": lambda g, v: g.op("Identity", g.op("Identity", v)),
}

# float32; 16 bits with float32 inside, rounded before the scale (Llama) or at the end (Gemma); all in one type
LAYOUTS = ("float32", "llama16", "gemma16", "plain16", "llamabf16", "gemmabf16", "float64")


@dataclasses.dataclass(frozen=True)
class Spelling:
    """One norm: how it is written and what it means."""

    layout: str = "float32"
    square: str = "pow"
    mean: str = "mean"
    inside: str = "add"
    epsilon: float = 1e-6
    outside: float = 0.0
    clamp: str = ""
    clamp_at: str = "mean"
    floor: float = 0.0
    normalise: str = "sqrt_reciprocal"
    scale: str = "right"
    bias: bool = False
    residual: bool = False
    partial: int = 0
    partial_op: str = "Slice"
    axes: tuple[int, ...] = (-1,)
    keepdims: str = "kept"
    noise: str = "none"
    noise_at: str = "x"
    shape: tuple[Any, ...] = (2, 3, 8)
    opset: int = 18
    constant_nodes: bool = False
    seed: int = 0

    def __str__(self) -> str:
        default = Spelling()
        changed = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return ",".join(f"{k}={v}" for k, v in changed.items() if v != getattr(default, k)) or "default"

    @property
    def io_type(self) -> int:
        return {"float32": F, "float64": D, "llama16": H, "gemma16": H, "plain16": H, "llamabf16": B, "gemmabf16": B}[
            self.layout
        ]

    @property
    def inner_type(self) -> int:
        return {"float64": D, "plain16": H}.get(self.layout, F)

    @property
    def size(self) -> int:
        return int(np.prod([self.shape[a] for a in self.axes]))

    @property
    def measured(self) -> int:
        return self.partial or self.size


@dataclasses.dataclass
class Built:
    """A model, and its meaning as arguments of ``rmsnorm_deploy.op.reference.rms_norm``."""

    model: onnx.ModelProto
    scale: np.ndarray
    bias: np.ndarray | None
    meaning: dict[str, Any]


def parameter_shape(s: Spelling) -> tuple[int, ...]:
    rank = len(s.shape)
    first = min(a % rank for a in s.axes)
    axes = {a % rank for a in s.axes}
    return tuple(s.shape[i] if i in axes else 1 for i in range(first, rank))


def build(s: Spelling) -> Built:
    """The model of one spelling: input x (and residual r), output y (and the sum, where it is read)."""
    g = Graph(s.opset, s.constant_nodes)
    rng = np.random.default_rng(s.seed)
    io, inner = s.io_type, s.inner_type
    x = g.input("x", io, s.shape)
    if s.residual:
        x = x + g.input("r", io, s.shape)
        total = x
    narrow = io != inner
    wide = g.cast(x, inner) if narrow else x
    noise = NOISE[s.noise]
    if s.noise_at == "x":
        wide = noise(g, wide)
    measured = wide
    if s.partial:
        k, axis = s.partial, s.axes[0]
        if s.partial_op == "Slice":
            measured = g.op("Slice", wide, *(g.constant([v], 7) for v in (0, k, axis)))
        else:
            rest = s.size - k
            names = [g.name("part"), g.name("rest")]
            sizes = g.constant([k, rest], 7)
            g.nodes.append(
                onnx.helper.make_node("Split", [wide.name, sizes.name], names, axis=axis, name=g.name("split"))
            )
            measured = V(g, names[0], wide.dtype)
    n = s.measured
    keepdims, restored = KEEPDIMS[s.keepdims]
    value, what = (MEANS | LAST_AXIS_MEANS)[s.mean](g, measured, SQUARES[s.square], s.axes, n, keepdims)
    epsilon = 0.0 if s.inside == "none" else s.epsilon
    epsilon_written = np.float64(np.asarray(epsilon).astype({F: np.float32, D: np.float64, H: np.float16}[inner]))
    floor, outside = s.floor, s.outside
    if s.noise_at == "mean":
        value = noise(g, value)
    inverse_from = None
    if what == "normalised":
        assert s.inside == "none"
        floor = 2.0**-69  # a row of zeros stays one; the squares of smaller numbers underflow
    elif what == "l2":
        # the norm is sqrt(n) times the RMS
        assert s.inside == "none"
        rms = value
        if s.clamp:
            rms = CLAMPS[s.clamp](g, rms, s.floor * math.sqrt(n))
        rms = rms * (n**-0.5)
        if s.outside:
            rms = rms + s.outside
        inverse_from = restored(g, rms, s.axes, wide, s.shape)
    else:
        # a sum is n times the mean, and so is everything that is compared with it
        times = n if what in ("sum", "root_n") else 1
        epsilon_written = epsilon_written / times
        if s.clamp and s.clamp_at == "mean":
            value = CLAMPS[s.clamp](g, value, s.floor**2 * times)
        value = INSIDE[s.inside](g, value, epsilon)
        value = restored(g, value, s.axes, wide, s.shape)
        if s.outside or (s.clamp and s.clamp_at == "rms"):
            rms = g.op("Sqrt", value)
            if s.outside:
                rms = rms + s.outside * math.sqrt(times)
            if s.clamp and s.clamp_at == "rms":
                rms = CLAMPS[s.clamp](g, rms, s.floor * math.sqrt(times))
            inverse_from = rms
    shape = parameter_shape(s)
    weight = 1 + 0.25 * rng.standard_normal(shape)
    scale_type = inner if s.layout.startswith("gemma") else io
    scale_value = np.asarray(weight).astype(_numpy(scale_type))
    numerator = wide
    if s.scale == "into_x":
        w = g.weight(scale_value.astype(_numpy(inner)), inner)
        scale_value = scale_value.astype(_numpy(inner))
        numerator = w * wide
    if what == "normalised":
        y = value * math.sqrt(n)
    elif inverse_from is not None:
        y = (
            numerator / inverse_from
            if s.normalise in ("sqrt_div", "pow_half")
            else numerator * g.op("Reciprocal", inverse_from)
        )
    elif s.scale == "into_inverse":
        w = g.weight(scale_value.astype(_numpy(inner)), inner)
        scale_value = scale_value.astype(_numpy(inner))
        y = wide * (g.op("Reciprocal", g.op("Sqrt", value)) * w)
    else:
        y = NORMALISE[s.normalise](g, numerator, value)
    if what == "sum":
        y = y * math.sqrt(n)
    elif what == "root_n":
        y = y / n**-0.5
    if s.noise_at == "normalised":
        y = noise(g, y)
    two = s.layout.startswith("llama")
    if narrow and two:
        y = g.cast(y, io)
    if s.scale in ("right", "left", "one_plus", "expanded", "einsum", "einsum_left"):
        if s.scale == "one_plus":
            base = g.weight(np.asarray(weight - 1).astype(_numpy(y.dtype)), y.dtype)
            w = 1.0 + base
            scale_value = (1 + np.asarray(weight - 1).astype(_numpy(y.dtype))).astype(_numpy(y.dtype))
        else:
            scale_value = scale_value.astype(_numpy(y.dtype))
            w = g.weight(scale_value, y.dtype)
        if s.scale == "expanded":
            w = g.op("Expand", w, g.op("Shape", x, dtype=7))
        if s.scale.startswith("einsum"):
            x_, w_ = "abcdef"[: len(s.shape)], "abcdef"[: len(s.shape)][-len(shape) :]
            pair, terms = ((w, y), f"{w_},{x_}") if s.scale == "einsum_left" else ((y, w), f"...{w_}, {w_}")
            y = g.op(
                "Einsum", *pair, equation=f"{terms} -> {terms.replace(' ', '').split(',')[s.scale == 'einsum_left']}"
            )
        else:
            y = w * y if s.scale == "left" else y * w
    elif s.scale == "scalar":
        scale_value = np.asarray(0.75).astype(_numpy(y.dtype))
        y = y * g.weight(scale_value, y.dtype)
    elif s.scale == "none":
        scale_value = np.ones([1] * len(s.shape), _numpy(io))
    bias = None
    if s.bias:
        bias = rng.standard_normal(shape).astype(_numpy(y.dtype))
        y = y + g.weight(bias, y.dtype)
    if narrow and not two:
        y = g.cast(y, io)
    if s.noise_at == "y":
        y = noise(g, y)
    g.output(y, "y", s.shape)
    if s.residual:
        g.output(g.cast(total, D if io != D else F), "after", s.shape)  # bfloat16 has no other kernel on the CPU
    meaning = {
        "axes": s.axes,
        "epsilon": float(epsilon_written),
        "stash_type": D if io == D else F,
        "scale_type": io if two or s.layout == "plain16" or io == D else F,
        "epsilon_outside": outside,
        "rms_floor": floor if s.clamp or what == "normalised" else 0.0,
        "partial_size": s.partial or None,
    }
    return Built(g.model(), scale_value, bias, meaning)


def _numpy(dtype: int) -> type:
    from tests.support.spellings.graph import NUMPY

    return NUMPY[dtype]
