"""What writes into a residual stream: one function for each kind of operator that can be centred where it is made.

Each is called with the graph and what it reads, and gives a value of the stream's shape.
"""

import numpy as np
from onnx import TensorProto, helper

from tests.support.spellings.graph import I64, F
from tests.support.streams import TOKENS, D


def matmul(g, x):
    return g.linear(x)


def matmul_transposed(g, x):
    w = g.op("Transpose", g.matrix(D, D), perm=[1, 0])
    return g.op("MatMul", x, w) + g.random(D)


def bias_first(g, x):
    return g.random(D) + g.op("MatMul", x, g.matrix(D, D))


def gemm(g, x, **attributes):
    flat = g.op("Reshape", x, g.constant([-1, D], I64))
    y = g.op("Gemm", flat, g.matrix(D, D), g.random(D), **attributes)
    return g.op("Reshape", y, g.constant([2, TOKENS, D], I64))


def gemm_transposed(g, x):
    return gemm(g, x, transB=1)


def gemm_scaled(g, x):
    return gemm(g, x, alpha=0.5, beta=2.0)


def gemm_without_bias(g, x):
    flat = g.op("Reshape", x, g.constant([-1, D], I64))
    y = g.op("Gemm", flat, g.matrix(D, D))
    return g.op("Reshape", y, g.constant([2, -1, D], I64))


def gemm_of_sizes_cut_out(g, x):
    """As TorchScript's exporter writes transformers' Conv1D: the shapes are put together from sizes of ``x``."""

    def one(start, end):
        cut = g.op("Slice", g.op("Shape", x, dtype=I64), *(g.constant([n], I64) for n in (start, end, 0)))
        return g.along("Unsqueeze", g.along("Squeeze", cut, [0]), [0])

    flat = g.op("Reshape", x, g.op("Concat", g.constant([-1], I64), one(-1, 2**63 - 1), axis=0))
    shape = g.op("Concat", one(0, 1), one(1, 2), g.constant([D], I64), axis=0)
    return g.op("Reshape", g.op("Gemm", flat, g.matrix(D, D), g.random(D)), shape)


def conv_of_tokens(g, x):
    turned = g.op("Transpose", x, perm=[0, 2, 1])
    y = g.op("Conv", turned, g.matrix(D, D, 3), g.random(D), pads=[1, 1])
    return g.op("Transpose", y, perm=[0, 2, 1])


def conv_of_patches(g, x):
    picture = g.op("Reshape", x, g.constant([2, 1, TOKENS, D], I64))
    y = g.op("Conv", picture, g.matrix(D, 1, 1, D), kernel_shape=[1, D], strides=[1, D])
    y = g.op("Reshape", y, g.constant([2, D, -1], I64))
    return g.op("Transpose", y, perm=[0, 2, 1])


def number(g, x):
    return g.linear(x) + 3.0


def subtracted(g, x):
    return g.op("Neg", g.op("Sub", g.random(D), g.linear(x)))


def layer_scale(g, x):
    return g.linear(x) * g.random(D)


def layer_scale_in_front(g, x):
    return g.random(1, 1, D) * g.op("MatMul", x, g.matrix(D, D))


def two_layer_scales(g, x):
    return (g.linear(x) * g.random(D) + g.random(D)) * g.random(D)


def scaled(g, x):
    return g.linear(x) * 0.5 / 1.5


def masked(g, x):
    mask = g.input("mask", F, (2, TOKENS, 1))
    return g.linear(x) * mask


def where(g, x):
    keep = g.input("keep", TensorProto.BOOL, (2, TOKENS, 1))
    return g.op("Where", keep, g.linear(x), g.random(D), dtype=F)


def dropped(g, x):
    return g.op("Identity", g.op("Dropout", g.linear(x)))


def two_of_them(g, x):
    return g.op("Sum", g.linear(x), g.linear(g.op("Tanh", x)), g.random(1, TOKENS, D))


def moved(g, x):
    y = g.along("Unsqueeze", g.linear(x), [0])
    y = g.along("Squeeze", y, [0])
    y = g.op("Transpose", y, perm=[1, 0, 2])
    return g.op("Transpose", y, perm=[1, 0, 2])


def cut_and_joined(g, x):
    y = g.linear(x)
    first = g.op("Slice", y, g.constant([0], I64), g.constant([2], I64), g.constant([1], I64))
    last = g.op("Gather", y, g.constant([2, 3, 4], I64), axis=1)
    return g.op("Concat", first, last, axis=1)


def split(g, x):
    y = g.linear(x)
    name = g.name("part")
    node = helper.make_node("Split", [y.name, g.constant([2, 3], I64).name], [name, name + "b"], axis=1)
    g.nodes.append(node)
    a, b = (type(y)(g, n, F) for n in (name, name + "b"))
    return g.op("Concat", a, b, axis=-2)


def cast(g, x):
    return g.cast(g.cast(g.linear(x), TensorProto.DOUBLE), F)


def weight_in_a_constant_node(g, x):
    g.constant_nodes = True
    w = g.constant(g.rng.standard_normal((D, D)) + 0.5)
    g.constant_nodes = False
    return g.op("MatMul", x, w)


def mean_of_tokens(g, x):
    return g.reduce("ReduceMean", g.linear(x), [1])


def resized(g, x):
    y = g.op("Transpose", g.linear(x), perm=[0, 2, 1])
    roi = g.constant(np.zeros(0), F)
    y = g.op("Resize", y, roi, g.constant([1.0, 1.0, 2.0], F), mode="linear")
    y = g.op("AveragePool", y, kernel_shape=[2], strides=[2])
    return g.op("Transpose", y, perm=[0, 2, 1])


def padded(g, x):
    y = g.op("Slice", g.linear(x), g.constant([1], I64), g.constant([4], I64), g.constant([1], I64))
    y = g.op("Pad", y, g.constant([0, 1, 0, 0, 1, 0], I64))
    return g.op("Mean", y, g.random(1, 1, D))


def repeated(g, x):
    y = g.reduce("ReduceSum", g.linear(x), [1], 0)
    return g.op("Tile", g.along("Unsqueeze", y, [1]), g.constant([1, TOKENS, 1], I64))


def matrix_on_the_left(g, x):
    y = g.op("MatMul", g.matrix(D, D), g.op("Transpose", x, perm=[0, 2, 1]))
    return g.op("Transpose", y, perm=[0, 2, 1])


def conv_transposed(g, x):
    turned = g.op("Transpose", x, perm=[0, 2, 1])
    y = g.op("ConvTranspose", turned, g.matrix(D, D, 1), g.random(D))
    return g.op("Transpose", y, perm=[0, 2, 1])


def pooled(g, x):
    y = g.op("GlobalAveragePool", g.op("Transpose", g.linear(x), perm=[0, 2, 1]))
    return g.along("Unsqueeze", g.op("Flatten", y, axis=1), [1])


WRITERS = [
    *(resized, padded, repeated, matrix_on_the_left, conv_transposed, pooled),
    *(matmul, matmul_transposed, bias_first, gemm, gemm_transposed, gemm_scaled, gemm_without_bias),
    gemm_of_sizes_cut_out,
    *(conv_of_tokens, conv_of_patches, number, subtracted, layer_scale, layer_scale_in_front),
    *(two_layer_scales, scaled, masked, where, dropped, two_of_them, moved, cut_and_joined, split, cast),
    *(weight_in_a_constant_node, mean_of_tokens),
]
