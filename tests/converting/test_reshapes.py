"""Streams through a Reshape whose shape is put together while the model runs, as opsets before 15 have it.

onnx's inference knows nothing of such a Reshape. What keeps the features together is converted; all else is centred
behind or left, and right either way.
"""

import numpy as np
import pytest
from onnx import TensorProto

from tests.support.spellings.graph import I64
from tests.support.streams import TOKENS, WORDS, D, Streams, converted

STATIC, NAMED, UNKNOWN = (2, TOKENS), ("batch", "tokens"), (None, None)


class Dynamic(Streams):
    """A graph whose tokens have sizes that may be known by name alone, or not at all."""

    def __init__(self, opset, sizes, seed=0, **kwargs):
        super().__init__(opset, seed=seed, **kwargs)
        self.sizes = sizes

    def embedded(self, table=None):
        ids = self.input("ids", I64, self.sizes)
        return self.op("Gather", table or self.random(WORDS, D, name="table"), ids, dtype=self.dtype)

    def finish(self, x, norm=None, **kwargs):
        y = self.linear((norm or self.layer_norm)(x), WORDS, bias=False)
        self.output(y, "y", (*(d if isinstance(d, int) else None for d in self.sizes), WORDS))
        return self.model(**kwargs)

    def shape(self, *parts):
        """Numbers, and vectors of one element."""
        vectors = [p if not isinstance(p, int) else self.constant([p], I64) for p in parts]
        return self.op("Concat", *vectors, axis=0)

    def size(self, x, axis):
        """One of the sizes of ``x``."""
        number = self.op("Gather", self.op("Shape", x, dtype=I64), self.constant(axis, I64), axis=0)
        return self.along("Unsqueeze", number, [0])

    def reshape(self, x, *parts):
        return self.op("Reshape", x, self.shape(*parts))


def make(model, seed):
    rng = np.random.default_rng(seed)
    given = {"ids": rng.integers(0, WORDS, (2, TOKENS))}
    for value in model.graph.input:
        if value.name == "count":
            given["count"] = np.array([2], np.int64)
    return given


def model_of(writer, opset, sizes, constant_nodes=False, around=None):
    g = Dynamic(opset, sizes)
    norm = g.layer_norm if opset >= 17 else g.spelled_out
    x = g.embedded()
    g.constant_nodes = constant_nodes
    if around is not None:
        x = around(g, x)
    x = x + writer(g, g.op("Tanh", norm(x)))
    return g.finish(g.layers(x, 2, norm), norm)


def of_the_product(g, x):
    """GPT-2's Conv1D: x.view(-1, x.size(-1)), and back with sizes of x and the number of features."""
    y = g.op("Gemm", g.reshape(x, -1, g.size(x, -1)), g.matrix(D, D), g.random(D))
    return g.reshape(y, g.size(x, 0), g.size(x, 1), D)


def rest_of_the_tokens(g, x):
    y = g.op("Gemm", g.op("Reshape", x, g.constant([-1, D], I64)), g.matrix(D, D), g.random(D))
    return g.reshape(y, g.size(x, 0), -1, D)


def features_of_the_input(g, x):
    y = g.op("Gemm", g.reshape(x, -1, D), g.matrix(D, D), g.random(D))
    return g.reshape(y, g.size(x, 0), g.size(x, 1), g.size(x, 2))


def features_of_the_product(g, x):
    y = g.op("Gemm", g.reshape(x, -1, D), g.matrix(D, D), g.random(D))
    return g.reshape(y, g.size(x, 0), g.size(x, 1), g.size(y, -1))


def tokens_of_all_rows(g, x):
    y = g.linear(x)
    flat = g.reshape(y, g.op("Mul", g.size(y, 0), g.size(y, 1)), D)
    return g.reshape(flat, g.size(y, 0), g.size(y, 1), D)


def sizes_that_are_cast(g, x):
    y = g.reshape(g.linear(x), -1, D)
    rows = g.cast(g.cast(g.size(x, 0), TensorProto.INT32), I64)
    return g.reshape(y, rows, g.op("Identity", g.size(x, 1)), D)


def a_number_of_features_that_is_unsqueezed(g, x):
    y = g.reshape(g.linear(x), -1, D)
    return g.reshape(y, g.size(x, 0), -1, g.along("Unsqueeze", g.constant(D, I64), [0]))


def sizes_that_are_gathered_at_once(g, x):
    y = g.reshape(g.linear(x), -1, D)
    sizes = g.op("Gather", g.op("Shape", x, dtype=I64), g.constant([0, 1], I64), axis=0)
    return g.reshape(y, sizes, D)


def sizes_in_a_vector(g, x):
    y = g.reshape(g.linear(x), -1, D)
    number = g.op("Gather", g.op("Shape", x, dtype=I64), g.constant(0, I64), axis=0)
    return g.reshape(y, g.op("Reshape", number, g.constant([1], I64)), -1, D)


def channels_in_front(g, x):
    y = g.op("Transpose", g.linear(x), perm=[0, 2, 1])
    y = g.reshape(y, g.size(y, 0), D, -1)
    return g.op("Transpose", y, perm=[0, 2, 1])


KEPT = [
    *(of_the_product, rest_of_the_tokens, features_of_the_input, features_of_the_product, tokens_of_all_rows),
    *(sizes_that_are_cast, a_number_of_features_that_is_unsqueezed, sizes_that_are_gathered_at_once),
    *(sizes_in_a_vector, channels_in_front),
]


def whole(report):
    return report.found == report.converted == 4 and not any(s.centrings for s in report.streams)


@pytest.mark.parametrize("writer", KEPT, ids=lambda w: w.__name__)
def test_features_that_stay_together(writer):
    for sizes in (NAMED, UNKNOWN, STATIC) if writer is of_the_product else (UNKNOWN,):
        _, report = converted(model_of(writer, 13, sizes), make=make)
        assert whole(report)


def test_constants_in_nodes():
    _, report = converted(model_of(of_the_product, 13, UNKNOWN, constant_nodes=True), make=make)
    assert whole(report)


def test_the_stream_itself_in_another_shape():
    def flat(g, x):
        return g.reshape(x, g.op("Mul", g.size(x, 0), g.size(x, 1)), 1, D)

    def writer(g, x):
        return g.reshape(g.linear(x), -1, 1, g.size(x, -1))

    _, report = converted(model_of(writer, 13, UNKNOWN, around=flat), make=make)
    assert whole(report)


# -- what may split or join features: never taken for what keeps them -------------------------------------------------


def the_rest_of_the_features(g, x):
    """With -1 at the end, the numbers of rows and tokens decide what becomes of the features."""
    y = g.op("Gemm", g.reshape(x, -1, D), g.matrix(D, D), g.random(D))
    return g.reshape(y, g.size(x, 0), g.size(x, 1), -1)


def half_of_the_features(g, x):
    y = g.op("Tanh", g.reshape(g.linear(x), g.size(x, 0), -1, D // 2))
    return g.reshape(y, g.size(x, 0), g.size(x, 1), D)


def halves_that_are_put_together(g, x):
    """Two tokens of half the features make the one of all of them."""
    y = g.linear(x, D // 2) + g.random(D // 2)
    y = g.op("Concat", y, y, axis=1)
    return g.reshape(y, g.size(x, 0), -1, D)


def features_with_the_tokens(g, x):
    y = g.reshape(g.linear(x), g.size(x, 0), -1)
    return g.reshape(y * 0.5, g.size(x, 0), g.size(x, 1), D)


def tokens_in_the_place_of_features(g, x):
    """Channels in front, and nothing that turns them: as many numbers, but others."""
    y = g.op("Transpose", g.linear(x), perm=[0, 2, 1])
    return g.reshape(y, g.size(x, 0), -1, D)


def sizes_of_another_value(g, x):
    """As many as the features of something else, of which nothing is known."""
    other = g.op("Reshape", g.op("Tanh", x), g.op("Shape", x, dtype=I64))
    y = g.reshape(g.linear(x), -1, g.size(other, 1), 2)
    return g.reshape(y, g.size(x, 0), g.size(x, 1), g.size(other, 2))


def a_size_that_a_caller_gives(g, x):
    y = g.reshape(g.linear(x), g.input("count", I64, (1,)), -1, D // 2)
    return g.reshape(y, g.size(x, 0), g.size(x, 1), D)


def features_in_front_of_a_dimension(g, x):
    """Of the features, each is cut into two, and they are turned before they are put together again."""
    y = g.reshape(g.linear(x), g.size(x, 0), -1, D // 2, 2)
    y = g.op("Transpose", y, perm=[0, 1, 3, 2])
    return g.reshape(y, g.size(x, 0), g.size(x, 1), D)


SPLIT = [
    *(the_rest_of_the_features, half_of_the_features, halves_that_are_put_together),
    *(tokens_in_the_place_of_features, sizes_of_another_value, features_in_front_of_a_dimension),
]
JOINED = [features_with_the_tokens, a_size_that_a_caller_gives]
"""What is put together again as it was: it would be right to take it, but nobody can tell by one node."""


@pytest.mark.parametrize("sizes", [NAMED, UNKNOWN, STATIC], ids=["named", "unknown", "static"])
@pytest.mark.parametrize("writer", SPLIT + JOINED, ids=lambda w: w.__name__)
def test_features_that_may_be_split(writer, sizes):
    _, report = converted(model_of(writer, 13, sizes), make=make)
    assert not whole(report)


@pytest.mark.parametrize("writer", SPLIT + JOINED, ids=lambda w: w.__name__)
def test_a_stream_that_is_split_itself(writer):
    """Whatever is said of it, nothing that is computed changes."""
    g = Dynamic(13, UNKNOWN)
    x = g.layers(g.embedded(), 1, g.spelled_out)
    x = writer(g, x)
    _, report = converted(g.finish(g.layers(x, 1, g.spelled_out), g.spelled_out), make=make)
    assert report.converted < report.found or any(s.centrings for s in report.streams)
