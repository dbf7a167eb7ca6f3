"""LayerNormalization, InstanceNormalization and GroupNormalization on CPUs: the mean, then the variance around it."""

from __future__ import annotations

import dataclasses

from rmsnorm_deploy.tvm.schedules.flat import Scratch, Tensor, at_least_1, folded, function, int64, lanes, over, rows
from rmsnorm_deploy.tvm.schedules.products.product import Size, times
from rmsnorm_deploy.tvm.schedules.values import indented

STACKED = 4
"""Vectors that are calculated side by side."""


@dataclasses.dataclass(frozen=True)
class Centred:
    """(X - mean) / sqrt(variance + epsilon), times W and plus B.

    Attributes:
        shape: of X.
        axis: the first that is normalised, of all behind it.
        groups: that axis 1 is divided into, each normalised with all axes behind; None for a layer's norm.
        dtype: of X.
        result: of Y.
        parameters: type of W and B.
        epsilon: that is added to the variance.
        scaled: whether there is W, with a value for each place that is normalised, or each channel.
        shifted: whether there is B.
    """

    shape: tuple[Size, ...]
    axis: int
    groups: int | None
    dtype: str
    result: str
    parameters: str
    epsilon: float
    scaled: bool = True
    shifted: bool = True

    @property
    def name(self) -> str:
        """A name for the kernel. Equal ones have equal names; different ones can have the same."""
        if self.groups is not None:
            return f"group_norm_{self.groups}_{self.result}"
        size = times(self.shape[self.axis :])
        return f"layer_norm_{size if isinstance(size, int) else 'any'}_{self.result}"

    def source(self, width: int) -> str:
        """TVMScript for a CPU with vectors of ``width`` float32 values."""
        shape = self.shape
        x, y = Tensor("X", shape, self.dtype), Tensor("Y", shape, self.result)
        if self.groups is None:
            count, size, of_parameters = times(shape[: self.axis]), times(shape[self.axis :]), shape[self.axis :]
        else:
            assert isinstance(shape[1], int)
            size = times([shape[1] // self.groups, *shape[2:]])
            count, of_parameters = times([shape[0], self.groups]), (shape[1],)
        given = [Tensor(n, of_parameters, self.parameters) for n in "W" * self.scaled + "B" * self.shifted]
        widths = (STACKED * width, width, 1)
        scratch: Scratch = [(name, widths[0], "float32") for name in ("total", "squares", "d")]
        scratch += [(name, 1, "float32") for name in ("mean", "rest", "variance", "inverse", "w", "b")]
        at = f"{{i}} * {int64(size)} + {{k}} + v"
        count_of = f'T.cast({at_least_1(size)}, "float32")'
        around = ["total[v] = total[v] + d[v]", "squares[v] = squares[v] + d[v] * d[v]"]
        root = f'T.sqrt(T.cast(variance[0], "float64") + T.float64({self.epsilon!r}))'
        body = [
            *lanes(widths[0], "total[v] = T.float32(0)"),
            *over(size, widths, lambda n: lanes(n, f"total[v] = total[v] + {x.wide(at)}")),
            *folded("total", widths[0], "{a} + {b}"),
            f"mean[0] = total[0] / {count_of}",
            *lanes(widths[0], "total[v] = T.float32(0)", "squares[v] = T.float32(0)"),
            *over(size, widths, lambda n: lanes(n, f"d[v] = {x.wide(at)} - mean[0]", *around)),
            *folded("total", widths[0], "{a} + {b}"),
            *folded("squares", widths[0], "{a} + {b}"),
            # what the mean lacks: the first sum was rounded at the size of the values, not of their differences
            f"rest[0] = total[0] / {count_of}",
            f"variance[0] = squares[0] / {count_of} - rest[0] * rest[0]",
            f'inverse[0] = T.cast(T.float64(1) / {root}, "float32")',
            *(self.places(x, y, given, widths) if self.groups is None else self.channels(x, y, given, widths)),
        ]
        return function(self.name, [x, *given, y], rows(count, size, ([x, *given], [y]), scratch, body))

    def places(self, x: Tensor, y: Tensor, given: list[Tensor], widths: tuple[int, ...]) -> list[str]:
        """The results of a row, with parameters for each place."""
        size = times(self.shape[self.axis :])
        at = f"{{i}} * {int64(size)} + {{k}} + v"
        value = f"(({x.wide(at)} - mean[0]) - rest[0]) * inverse[0]"
        for tensor in given:
            value = f"{value} {'*' if tensor.name == 'W' else '+'} {tensor.wide('{k} + v')}"
        return over(size, widths, lambda n: lanes(n, y.store(at, value)))

    def channels(self, x: Tensor, y: Tensor, given: list[Tensor], widths: tuple[int, ...]) -> list[str]:
        """The results of a group, with parameters for each channel."""
        assert isinstance(self.shape[1], int)
        assert self.groups is not None
        each, inner = self.shape[1] // self.groups, times(self.shape[2:])
        at = f"({{i}} * {each} + c) * {int64(inner)} + {{k}} + v"
        value = f"(({x.wide(at)} - mean[0]) - rest[0]) * inverse[0]"
        lines = []
        for tensor in given:
            name = tensor.name.lower()
            lines.append(f"{name}[0] = {tensor.wide(f'{{i}} % {self.groups} * {each} + c')}")
            value = f"{value} {'*' if name == 'w' else '+'} {name}[0]"
        lines += over(inner, widths, lambda n: lanes(n, y.store(at, value)))
        return [f"for c in range({each}):", *indented(lines)]
