"""Signs and directions: every step between the reduction and x / rms may turn a value over, and a bound with it.

What is fused computes what the chain computes; what would need a greatest RMS stays as it is.
"""

import dataclasses

import numpy as np
import pytest
from onnx import helper

import rmsnorm_deploy
from tests.support.run import run
from tests.support.spellings.graph import I64, NUMPY, D, F, Graph, V

SIZE = 16
NAN, INF = float("nan"), float("inf")


def rows_of(dtype):
    """Rows of ordinary size, near the root of epsilon, all zero, huge, and with one element."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, SIZE)) * np.array([1, 1, 1e-3, 1e-4, 0, 1e10, 30, 0.3])[:, None]
    x[7, 1:] = 0
    return x.astype(NUMPY[dtype])


@dataclasses.dataclass
class Value:
    """A value in a graph, and in float64."""

    there: V
    here: np.ndarray

    def op(self, op_type, compute, *constants, at=0):
        """The value that this is input ``at`` of, beside constants."""
        g, dtype = self.there.graph, self.there.dtype
        numbers = [np.asarray(c).astype(NUMPY[dtype]).astype(np.float64) for c in constants]
        inputs = [g.constant(c, dtype) for c in constants]
        inputs.insert(at, self.there)
        numbers.insert(at, self.here)
        with np.errstate(all="ignore"):
            return Value(g.op(op_type, *inputs), compute(*numbers))


# name: (value, constant) -> value
STEPS = {
    "mul": lambda v, c: v.op("Mul", np.multiply, c),
    "div": lambda v, c: v.op("Div", np.divide, c),
    "over": lambda v, c: v.op("Div", np.divide, c, at=1),
    "add": lambda v, c: v.op("Add", np.add, c),
    "sub": lambda v, c: v.op("Sub", np.subtract, c),
    "from": lambda v, c: v.op("Sub", np.subtract, c, at=1),
    "max": lambda v, c: v.op("Max", np.maximum, c),
    "min": lambda v, c: v.op("Min", np.minimum, c),
    "clip": lambda v, c: v.op("Clip", np.maximum, c),
    "clip_both": lambda v, c: v.op("Clip", lambda a, low, high: np.minimum(np.maximum(a, low), high), c, 3.0),
    "neg": lambda v, _: v.op("Neg", np.negative),
    "abs": lambda v, _: v.op("Abs", np.abs),
    "reciprocal": lambda v, _: v.op("Reciprocal", np.reciprocal),
    "sqrt": lambda v, _: v.op("Sqrt", np.sqrt),
    "pow": lambda v, c: v.op("Pow", np.power, c),
    "scale": lambda v, _: v.op("Mul", np.multiply, np.linspace(-1, 2, SIZE)),
}


def start_of(g, x, feeds, how):
    """The reduction of x's square."""
    square = feeds.astype(np.float64) ** 2
    if how == "l2":
        return Value(g.reduce("ReduceL2", x, (-1,)), np.sqrt(square.sum(-1, keepdims=True)))
    if how == "sum":
        return Value(g.reduce("ReduceSum", x * x, (-1,)), square.sum(-1, keepdims=True))
    return Value(g.reduce("ReduceMean", x * x, (-1,)), square.mean(-1, keepdims=True))


def applied(value, steps):
    for name, constant in steps:
        value = STEPS[name](value, constant)
    return value


def ended(x, feeds, value, how):
    """X divided by the value or multiplied by it."""
    with np.errstate(all="ignore"):
        wide = feeds.astype(np.float64)
        if how == "mul":
            return x * value.there, wide * value.here
        return x / value.there, wide / value.here


def wrong(got, before, truth):
    """Rows in which ``got`` is neither the truth nor what the original gives."""
    got, before = got.astype(np.float64), before.astype(np.float64)
    with np.errstate(all="ignore"):
        most = np.nanmax(np.where(np.isfinite(truth), np.abs(truth), 0), -1, keepdims=True)
        far = [np.abs(got - other) > 1e-5 * most for other in (truth, before)]
        differs = [
            ~((got == o) | (np.isnan(got) & np.isnan(o)) | ~f) for o, f in zip((truth, before), far, strict=True)
        ]
        unlike = [d | (np.isfinite(got) != np.isfinite(o)) for d, o in zip(differs, (truth, before), strict=True)]
    return np.flatnonzero((unlike[0] & unlike[1]).any(-1))


# (start, steps, end, whether it is a norm): the value is -rms, -1/rms ... where the bound meets it
CHAINS = {
    "-l2, clip": ("l2", [("mul", -1), ("clip", 0.5)], "div", False),
    "-l2, max": ("l2", [("neg", 0), ("max", 0.5)], "div", False),
    "-mean, max, -, sqrt": ("mean", [("mul", -1), ("max", 0.5), ("neg", 0), ("sqrt", 0)], "div", False),
    "-mean, max negative": ("mean", [("neg", 0), ("max", -0.5), ("abs", 0), ("sqrt", 0)], "div", False),
    "-mean, min negative": ("mean", [("neg", 0), ("min", -1e-6), ("neg", 0), ("sqrt", 0)], "div", True),
    "-mean, min 0": ("mean", [("neg", 0), ("min", 0), ("abs", 0), ("add", 1e-6), ("sqrt", 0)], "div", True),
    "-l2, min": ("l2", [("div", -1), ("min", -1e-3)], "div", True),
    "-l2, min above": ("l2", [("div", -1), ("min", 1e-3)], "div", True),
    "l2, max negative": ("l2", [("max", -1e-3)], "div", True),
    "l2, clip of a negative": ("l2", [("clip", -1)], "div", True),
    "l2, min": ("l2", [("min", 0.5)], "div", False),
    "l2, min 0": ("l2", [("min", 0)], "div", False),
    "l2, min infinite": ("l2", [("min", INF)], "div", True),
    "l2, max infinite": ("l2", [("max", INF)], "div", False),
    "l2, max minus infinity": ("l2", [("max", -INF)], "div", True),
    "l2, max nan": ("l2", [("max", NAN)], "div", False),
    "l2, clip both": ("l2", [("clip_both", 1e-3)], "div", False),
    "l2, clip min above max": ("l2", [("clip_both", 4.0)], "div", False),
    "1/l2, min": ("l2", [("reciprocal", 0), ("min", 1e3)], "mul", True),
    "1/l2, max": ("l2", [("reciprocal", 0), ("max", 1e-3)], "mul", False),
    "1/l2, max 0": ("l2", [("reciprocal", 0), ("max", 0)], "mul", True),
    "-1/l2, max": ("l2", [("over", -1), ("max", -1e3)], "mul", True),
    "-1/l2, min": ("l2", [("over", -1), ("min", -1e-3)], "mul", False),
    "1/mean, min, sqrt": ("mean", [("reciprocal", 0), ("min", 1e6), ("sqrt", 0)], "mul", True),
    "pow -1 of negative": ("mean", [("add", 1e-6), ("sqrt", 0), ("neg", 0), ("pow", -1)], "mul", True),
    "pow -0.5 of negative": ("mean", [("neg", 0), ("pow", -0.5)], "mul", False),
    "pow 3": ("mean", [("add", 1e-6), ("sqrt", 0), ("pow", 3)], "div", False),
    "sqrt of negative": ("mean", [("mul", -2), ("sqrt", 0)], "div", False),
    "sqrt of twice negative": ("mean", [("mul", -2), ("mul", -3), ("sqrt", 0)], "div", True),
    "epsilon negative": ("mean", [("add", -1e-6), ("sqrt", 0)], "div", False),
    "epsilon subtracted": ("mean", [("sub", 1e-6), ("sqrt", 0)], "div", False),
    "epsilon of the other sign": ("mean", [("neg", 0), ("add", 1e-6), ("neg", 0), ("sqrt", 0)], "div", False),
    "epsilon of the same sign": ("mean", [("neg", 0), ("add", -1e-6), ("neg", 0), ("sqrt", 0)], "div", True),
    "epsilon minus": ("mean", [("from", -1e-6), ("neg", 0), ("sqrt", 0)], "div", True),
    "zero minus": ("mean", [("add", 1e-6), ("sqrt", 0), ("from", 0)], "div", True),
    "epsilon infinite": ("mean", [("add", INF), ("sqrt", 0)], "div", False),
    "epsilon nan": ("mean", [("add", NAN), ("sqrt", 0)], "div", False),
    "factor zero": ("mean", [("mul", 0), ("add", 1e-6), ("sqrt", 0)], "div", False),
    "factor infinite": ("mean", [("mul", INF), ("sqrt", 0)], "div", False),
    "factor nan": ("mean", [("mul", NAN), ("sqrt", 0)], "div", False),
    "divided by zero": ("mean", [("div", 0), ("sqrt", 0)], "div", False),
    "divided by infinity": ("mean", [("div", INF), ("sqrt", 0)], "div", False),
    "zero over": ("mean", [("sqrt", 0), ("over", 0)], "mul", False),
    "infinity over": ("mean", [("sqrt", 0), ("over", INF)], "mul", False),
    "negative over": ("mean", [("add", 1e-6), ("sqrt", 0), ("over", -2)], "mul", True),
    "max, then epsilon": ("mean", [("max", 1e-6), ("add", 1e-7), ("sqrt", 0)], "div", True),
    "max, root, epsilon": ("mean", [("max", 1e-6), ("sqrt", 0), ("add", 1e-4)], "div", True),
    "epsilon, then max": ("mean", [("add", 1e-7), ("max", 1e-6), ("sqrt", 0)], "div", True),
    "max twice": ("mean", [("max", 1e-6), ("sqrt", 0), ("max", 1e-4)], "div", True),
    "max, then more": ("mean", [("max", 1e-6), ("sqrt", 0), ("max", 0.5)], "div", True),
    "max, inverse, min": ("mean", [("max", 1e-6), ("pow", -0.5), ("min", 500)], "mul", True),
    "max, negative, max": ("mean", [("max", 1e-6), ("sqrt", 0), ("neg", 0), ("max", -2)], "div", False),
    "0 - mean, inverse": ("mean", [("from", 0), ("reciprocal", 0), ("neg", 0), ("sqrt", 0)], "mul", False),
    "scaled inverse": ("mean", [("add", 1e-6), ("pow", -0.5), ("scale", 0)], "mul", True),
    "scaled inverse, factor": ("mean", [("add", 1e-6), ("pow", -0.5), ("scale", 0), ("mul", -3)], "mul", True),
    "scaled inverse, clamped": ("mean", [("add", 1e-6), ("pow", -0.5), ("scale", 0), ("min", 0.5)], "mul", False),
    "scaled inverse, inverse": ("mean", [("add", 1e-6), ("pow", -0.5), ("scale", 0), ("over", 1)], "div", False),
    "scaled inverse, absolute": ("mean", [("add", 1e-6), ("pow", -0.5), ("scale", 0), ("abs", 0)], "mul", False),
    "scaled inverse, epsilon": ("mean", [("add", 1e-6), ("pow", -0.5), ("scale", 0), ("add", 1e-6)], "mul", False),
    "inverse plus": ("mean", [("add", 1e-6), ("pow", -0.5), ("add", 1e-3)], "mul", False),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [F, D], ids=["float32", "float64"])
def test_each_chain_is_fused_where_it_is_a_norm_and_then_right(dtype):
    g, feeds, truths = Graph(), rows_of(dtype), {}
    x = g.input("x", dtype, ["n", SIZE])
    for i, (how, steps, end, _) in enumerate(CHAINS.values()):
        y, truths[f"y{i}"] = ended(x, feeds, applied(start_of(g, x, feeds, how), steps), end)
        g.output(y, f"y{i}", ["n", SIZE])
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model)
    done = {f.output for f in report.fused}
    assert {name for i, name in enumerate(CHAINS) if f"y{i}" in done} == {n for n, c in CHAINS.items() if c[3]}
    assert all(m.reason for m in report.missed)
    before = run(model, {"x": feeds}, False)
    for hook in (None, rmsnorm_deploy.register):
        after = run(fused, {"x": feeds}, True, hook)
        bad = {
            name: wrong(a, b, truths[f"y{i}"]) for i, (name, a, b) in enumerate(zip(CHAINS, after, before, strict=True))
        }
        assert not {name: rows for name, rows in bad.items() if len(rows)}


def drawn(rng):
    """A chain of random steps: a reduction, what comes before the root, the root, what comes behind it, and the end."""
    how = str(rng.choice(["mean", "sum", "l2"]))
    power, steps = (1 if how == "l2" else 2), []

    def some(most, behind):
        nonlocal power
        names = [n for n in STEPS if n not in ("sqrt", "pow") and (behind or n != "scale")]
        for _ in range(rng.integers(0, most)):
            name = str(rng.choice(names))
            if name in ("over", "reciprocal"):
                power = -power
            steps.append((name, float(rng.choice(CONSTANTS))))

    some(5, False)
    if abs(power) == 2:
        name, exponent = [("sqrt", 0.5), ("pow", 0.5), ("pow", -0.5)][rng.integers(3)]
        steps.append((name, exponent))
        power = int(power * exponent)
    some(4, True)
    return how, steps, "div" if power == 1 else "mul"


CONSTANTS = (-2, -1, -1e-3, -1e-6, 0, 1e-6, 1e-3, 0.5, 1, 1, 2, 1e3, 1e6)


@pytest.mark.parametrize(("dtype", "opset"), [(F, 18), (F, 12), (D, 21)])
def test_chains_of_random_steps_are_right_where_they_are_fused(dtype, opset):
    rng = np.random.default_rng(opset)
    g, feeds = Graph(opset), rows_of(dtype)
    x = g.input("x", dtype, ["n", SIZE])
    chains, truths = [drawn(rng) for _ in range(500)], []
    for i, (how, steps, end) in enumerate(chains):
        y, truth = ended(x, feeds, applied(start_of(g, x, feeds, how), steps), end)
        g.output(y, f"y{i}", ["n", SIZE])
        truths.append(truth)
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model)
    assert len(report.fused) >= 100
    assert len(report.missed) >= 100
    before = run(model, {"x": feeds}, False)
    for hook in (None, rmsnorm_deploy.register):
        after = run(fused, {"x": feeds}, False, hook)
        bad = [(chains[i], rows) for i in range(len(chains)) if len(rows := wrong(after[i], before[i], truths[i]))]
        assert not bad, bad[:3]


@pytest.mark.parametrize("epsilon", [-1e-6, INF, -INF, NAN])
@pytest.mark.parametrize("op", ["RMSNormalization", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_an_operator_with_an_epsilon_that_is_none_stays(op, epsilon):
    g = Graph(23)
    skip = op.startswith("Skip")
    x, w = g.input("x", F, [2, 3, SIZE]), g.weight(np.ones(SIZE), F)
    inputs = [x, g.input("r", F, [2, 3, SIZE]), w] if skip else [x, w]
    g.output(g.op(op, *inputs, domain="com.microsoft" if skip else "", epsilon=epsilon), "y", [2, 3, SIZE])
    model = g.model(extra_opsets=[helper.make_opsetid("com.microsoft", 1)])
    fused, report = rmsnorm_deploy.fuse(model)
    assert [n.op_type for n in fused.graph.node] == [op]
    assert [m.reason for m in report.missed] == ["epsilon is negative or not finite"]


def test_a_constant_added_to_each_square_is_an_epsilon_where_it_can_be_one():
    for constant, fuses in ((1e-6, True), (-1e-6, False), (INF, False), (NAN, False)):
        g = Graph()
        x = g.input("x", F, ["n", SIZE])
        g.output(x / g.op("Sqrt", g.reduce("ReduceMean", x * x + constant, (-1,))), "y", ["n", SIZE])
        assert bool(rmsnorm_deploy.fuse(g.model())[1].fused) == fuses


def test_the_sign_of_a_sum_over_an_unknown_number_of_elements_is_known():
    for constant, fuses in ((-1.0, True), (0.0, True), (1e-3, False)):
        g = Graph()
        x = g.input("x", F, ["n", "h"])
        total = g.op("Max", g.reduce("ReduceSum", x * x, (-1,)), g.constant(constant))
        size = g.cast(g.op("Gather", g.op("Shape", x, dtype=I64), g.constant(1, I64), dtype=I64), F)
        g.output(x / g.op("Sqrt", total / size + 1e-6), "y", ["n", "h"])
        assert bool(rmsnorm_deploy.fuse(g.model())[1].fused) == fuses
