"""Which places of Y a place of the kernel reaches without leaving X, as text."""

from __future__ import annotations

from rmsnorm_deploy.tvm.schedules.convolutions.convolution import Convolution
from rmsnorm_deploy.tvm.schedules.flat import int64


def within(c: Convolution, tap: str, first: str, length: str) -> tuple[str, str]:
    """Of ``length`` places along the last size, from ``first`` on: the first for which ``tap`` is in X, and the end."""
    stride = c.strides[-1]
    shift = f"({tap} * {c.dilations[-1]} - {c.before[-1]})"
    low = f"(T.max(T.int64({stride - 1}) - {shift}, T.int64(0)) // {stride} - {first})"
    high = f"((T.max({int64(c.x[-1])} - {shift} + {stride - 1}, T.int64(0))) // {stride} - {first})"
    low, high = (f"T.min(T.max({bound}, T.int64(0)), {length})" for bound in (low, high))
    return low, f"T.max({low}, {high})"
