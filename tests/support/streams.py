"""Models with a residual stream: what writes into it, what reads it, and how a conversion of them is judged."""

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import rmsnorm_deploy
from rmsnorm_deploy.check.exact import in_float64
from rmsnorm_deploy.model.graphs import nodes_of
from tests.support.judge import units
from tests.support.run import run
from tests.support.spellings.graph import I64, F, Graph

D, TOKENS, WORDS = 16, 5, 11
"""Features, tokens and rows of the tables."""


class Streams(Graph):
    """A graph whose weights have means far from zero."""

    def __init__(self, opset=18, dtype=F, seed=0):
        super().__init__(opset)
        self.dtype = dtype
        self.rng = np.random.default_rng(seed)
        self.widths: dict[str, int] = {}

    def random(self, *shape, mean=2.0, spread=0.25, name=""):
        return self.weight(self.rng.standard_normal(shape) * spread + mean, self.dtype, name)

    def matrix(self, *shape, name=""):
        return self.random(*shape, mean=0.5, name=name)

    def embedded(self, table=None):
        """Tokens, looked up in a table."""
        ids = self.input("ids", I64, (2, TOKENS))
        return self.op("Gather", table or self.random(WORDS, D, name="table"), ids, dtype=self.dtype)

    def layer_norm(self, x, bias=True, **attributes):
        w = self.weight(1 + 0.2 * self.rng.standard_normal(D), self.dtype)
        b = [self.weight(0.3 * self.rng.standard_normal(D), self.dtype)] if bias else []
        return self.op("LayerNormalization", x, w, *b, **{"axis": -1, "epsilon": 1e-5, **attributes})

    def spelled_out(self, x, square="pow", keepdims=1, how="sub"):
        """LayerNorm in other operators."""
        mean = self.reduce("ReduceMean", x, [-1], keepdims)
        mean = mean if keepdims else self.along("Unsqueeze", mean, [-1])
        d = {"add": lambda: x + self.op("Neg", mean), "added": lambda: self.op("Neg", mean) + x}.get(
            how, lambda: x - mean
        )()
        if how == "shift":
            w = self.weight(1 + 0.2 * self.rng.standard_normal(D), self.dtype)
            b = self.weight(0.3 * self.rng.standard_normal(D), self.dtype)
            ms = self.reduce("ReduceMean", d**2.0 if square == "pow" else d * d, [-1])
            s = self.op("Reciprocal", self.op("Sqrt", ms + 1e-5)) * w
            return x * s + (b - mean * s) if square == "pow" else (b - s * mean) + s * x
        if how == "difference":
            squares = self.reduce("ReduceMean", x**2.0 if square == "pow" else x * x, [-1])
            ms = squares - (mean**2.0 if square == "pow" else mean * mean)
        else:
            ms = self.reduce("ReduceMean", d**2.0 if square == "pow" else d * d, [-1])
        w = self.weight(1 + 0.2 * self.rng.standard_normal(D), self.dtype)
        b = self.weight(0.3 * self.rng.standard_normal(D), self.dtype)
        return d / self.op("Sqrt", ms + 1e-5) * w + b

    def linear(self, x, size=D, bias=True):
        shape = [self.widths.get(x.name, D), size]
        y = self.op("MatMul", x, self.matrix(*shape))
        y = y + self.random(size) if bias else y
        self.widths[y.name] = size
        return y

    def branch(self, x, norm=None):
        """What a layer adds: norm, product, activation, product."""
        n = (norm or self.layer_norm)(x)
        h = self.op("Tanh", self.linear(n, 2 * D))
        self.widths[h.name] = 2 * D
        return self.linear(h)

    def layers(self, x, count=2, norm=None):
        for _ in range(count):
            x = x + self.branch(x, norm)
        return x

    def finish(self, x, norm=None, **kwargs):
        """The last norm, and a product behind it."""
        y = self.linear((norm or self.layer_norm)(x), WORDS, bias=False)
        self.output(y, "y", (2, TOKENS, WORDS))
        return self.model(**kwargs)


def feeds(model, seed=0):
    rng = np.random.default_rng(seed)
    weights = {t.name for t in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        shape = [d.dim_value for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        integers = rng.integers(0, WORDS if kind.elem_type == I64 else 2, shape)
        found[value.name] = (rng.standard_normal(shape) + 0.5 if dtype.kind == "f" else integers).astype(dtype)
    return found


def truth(model, given):
    """Outputs of the model in float64."""
    wide = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in given.items()}
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(in_float64(model)).run(None, wide)


def layer_norms(model):
    return sum(n.op_type == "LayerNormalization" for n in nodes_of(model))


def converted(model, *, exact=True, least=1.0, make=feeds, **kwargs):
    """The converted model and the report, once it is judged: valid, the original untouched, the error no larger.

    With ``exact`` the model is also converted in float64, where nothing but rounding may differ. ``make`` makes inputs
    from the model and a seed.
    """
    before = model.SerializeToString()
    plain, report = rmsnorm_deploy.convert(model, fuse=False, **kwargs)
    assert model.SerializeToString() == before
    onnx.checker.check_model(plain, full_check=True)
    given = [make(model, seed) for seed in range(4)]
    wanted = [truth(model, one) for one in given]
    for optimise in (False, True):
        allowed = max(least, mean_error(model, given, wanted, optimise))
        for result in (plain, rmsnorm_deploy.convert(model, **kwargs)[0]):
            assert mean_error(result, given, wanted, optimise) <= allowed, "less exact than the original"
    if exact:
        same = rmsnorm_deploy.convert(in_float64(model), fuse=False)[0]
        for one, outputs in zip(given, wanted, strict=True):
            for a, b in zip(truth(same, one), outputs, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
    return plain, report


def mean_error(model, given, wanted, optimise):
    """Of the worst output for each of several inputs; a single one is luck."""
    return np.mean([worst(run(model, one, optimise), right) for one, right in zip(given, wanted, strict=True)])


def worst(got, wanted):
    """The largest error of all float outputs in units in the last place of a row's largest value."""
    errors = [units(a, b) for a, b in zip(got, wanted, strict=True) if np.asarray(a).dtype.kind not in "iub"]
    return float(max(np.max(e) for e in errors))
