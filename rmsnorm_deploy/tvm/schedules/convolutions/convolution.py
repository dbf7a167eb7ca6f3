"""One convolution as a kernel sees it: everything that makes two differ."""

from __future__ import annotations

import dataclasses
import itertools
import math

from rmsnorm_deploy.tvm.schedules.products.product import Size, times


@dataclasses.dataclass(frozen=True)
class Convolution:
    """Y[n, o, p] = the sum over c and k of W[o, c, k] X[n, c, p stride + k dilation - before], in float32.

    Attributes:
        x: (batch, channels, sizes...).
        w: (results, channels of a group, kernel...), all known.
        y: (batch, results, sizes...).
        strides: for each of the sizes.
        before: zeros in front of X.
        after: zeros behind it.
        dilations: of the kernel.
        groups: channels and results are divided into as many.
    """

    x: tuple[Size, ...]
    w: tuple[int, ...]
    y: tuple[Size, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int

    @property
    def terms(self) -> int:
        """Of each sum."""
        return math.prod(self.w[1:])

    @property
    def results(self) -> int:
        """Channels of Y in a group."""
        return self.w[0] // self.groups

    @property
    def places(self) -> Size:
        """Values of a channel of Y."""
        return times(self.y[2:])

    @property
    def padded(self) -> bool:
        """Whether anything reaches beyond X."""
        return any(self.before) or any(self.after)

    @property
    def pointwise(self) -> bool:
        """Whether each value depends on the channels of one place only."""
        return not self.padded and all(n == 1 for n in (*self.w[2:], *self.strides))

    @property
    def name(self) -> str:
        """A name for the kernel. Equal ones have equal names; different ones can have the same."""
        kernel = "x".join(map(str, self.w))
        return f"convolution_{kernel}" + (f"_groups_{self.groups}" if self.groups > 1 else "")

    def taps(self) -> itertools.product[tuple[int, ...]]:
        """Every place in the kernel."""
        return itertools.product(*(range(n) for n in self.w[2:]))
