"""Functions of float32 by polynomials: expressions that LLVM makes vectors of, as it cannot of calls of libm.

Each takes a float32 expression and gives one. NaN gives NaN, infinities give the limits, and results below the normal
numbers are right, too. How large an error is, at most, is in ERRORS and ERRORS_OF_X, for CPUs that multiply and add in
one instruction and those that do not; tests/tvm/test_tvm_functions.py measures it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

ERRORS = {"exp": 1.0, "tanh": 2.5, "sigmoid": 2.5, "erf": 1.5}
"""In units in the last place of the result."""
ERRORS_OF_X = {"silu": 2.5, "gelu": 2.0, "gelu_tanh": 2.0}
"""In units in the last place of x, which bounds these results: nobody computes their small sides more exactly."""

_EXP = (1.9790135e-4, 1.3944869e-3, 8.3334983e-3, 4.1666292e-2, 1.6666666e-1, 0.5)
"""(e^r - 1 - r) / r^2 for |r| <= ln(2) / 2, highest power first: 5e-11."""
_ERF = (-5.99940737e-4, 4.99483074e-3, -2.676772034e-2, 1.1281845969e-1, -3.7612496463e-1, 1.2837914996e-1)
"""erf(x) / x - 1 in x^2 for |x| < 0.92: 1.5e-8."""
_LOG_ERFC = (
    *(1.959373662e-4, -3.0432186596e-3, 2.22269254e-2, -1.039316074e-1, -6.371822352874e-1, -1.1276756334947686),
    -1.9567388627e-4,
)
"""log(1 - erf(x)) for 0.92 <= x <= 3.95: 1.5e-9."""
_LN2_HIGH = 0.693359375
"""ln(2) in nine bits, so that its products with whole numbers are exact."""
_LN2_LOW = math.log(2.0) - _LN2_HIGH
_ROUNDER = 12582912.0
"""1.5 * 2^23: what is added to it is rounded to a whole number, which its lowest bits then are."""
_LEAST_EXP, _MOST_EXP = -104.5, 89.5
"""Beyond these exp is 0 and infinity in float32."""


def exp(x: Any) -> Any:
    """e^x."""
    limited = _limited(x, _LEAST_EXP, _MOST_EXP)
    return _named(limited, lambda a: _reduced(a, lambda n, above: _scaled(_f32(1.0) + above, n)))


def tanh(x: Any) -> Any:
    """Of x: u / (u + 2) with u = e^(2x) - 1, of the absolute value: nothing cancels."""

    def of(a: Any) -> Any:
        def less_one(n: Any, above: Any) -> Any:
            return _named(_power(n), lambda p: p * above + (p - _f32(1.0)))

        u = _named(_limited(tirx.abs(a) * _f32(2.0), 0.0, 20.0), lambda v: _reduced(v, less_one))
        return _named(u, lambda u: _signed(u / (u + _f32(2.0)), a))

    return _named(x, of)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x), of which the small side is computed: results of any size are right."""

    def of(a: Any) -> Any:
        e = exp(-tirx.abs(a))
        return _named(e, lambda e: tirx.Select(a < _f32(0.0), e, _f32(1.0)) / (_f32(1.0) + e))

    return _named(x, of)


def silu(x: Any) -> Any:
    """The product of x and its sigmoid."""
    return _named(x, lambda a: a * sigmoid(a))


def erf(x: Any) -> Any:
    """The error function."""

    def of(a: Any) -> Any:
        square = _named(a * a, lambda s: a + a * _polynomial(s, _ERF))
        large = _named(_limited(tirx.abs(a), 0.0, 3.95), lambda t: _f32(1.0) - exp(_polynomial(t, _LOG_ERFC)))
        return tirx.Select(tirx.abs(a) < _f32(0.92), square, _signed(large, a))

    return _named(x, of)


def gelu(x: Any) -> Any:
    """The product x / 2 * (1 + erf(x / sqrt(2)))."""
    return _named(x, lambda a: a * _f32(0.5) * (_f32(1.0) + erf(a * _f32(math.sqrt(0.5)))))


def gelu_tanh(x: Any) -> Any:
    """The product x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""

    def of(a: Any) -> Any:
        inner = a * (_f32(1.0) + _f32(0.044715) * a * a) * _f32(math.sqrt(2.0 / math.pi))
        return a * _f32(0.5) * (_f32(1.0) + tanh(inner))

    return _named(x, of)


# -- pieces


def _f32(value: float) -> Any:
    return tirx.const(value, "float32")


def _named(value: Any, body: Callable[[Any], Any]) -> Any:
    """``body`` of a value that is computed once."""
    value = tirx.convert(value)
    name = tirx.Var("t", value.ty)
    return tirx.Let(name, value, body(name))


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Highest power first."""
    total = _f32(coefficients[0])
    for c in coefficients[1:]:
        total = total * x + _f32(c)
    return total


def _limited(x: Any, low: float, high: float) -> Any:
    """``x`` between the two, NaN as it is: a comparison with it is false."""
    least = tirx.Select(x < _f32(low), _f32(low), x)
    return _named(least, lambda v: tirx.Select(v > _f32(high), _f32(high), v))


def _reduced(x: Any, body: Callable[[Any, Any], Any]) -> Any:
    """``body`` of n, an int32, and e^r - 1, where x = n ln(2) + r with |r| <= ln(2) / 2."""

    def parts(shifted: Any) -> Any:
        n = tirx.reinterpret("int32", shifted) - tirx.reinterpret("int32", _f32(_ROUNDER))
        whole = shifted - _f32(_ROUNDER)
        r = _named(whole, lambda w: x - w * _f32(_LN2_HIGH) - w * _f32(_LN2_LOW))
        above = _named(r, lambda r: r + r * r * _polynomial(r, _EXP))
        return _named(n, lambda n: _named(above, lambda above: body(n, above)))

    return _named(x * _f32(1.0 / math.log(2.0)) + _f32(_ROUNDER), parts)


def _power(n: Any) -> Any:
    """2^n for an exponent of a normal number."""
    return tirx.reinterpret("float32", (n + tirx.const(127, "int32")) << tirx.const(23, "int32"))


def _scaled(x: Any, n: Any) -> Any:
    """The product x * 2^n in two steps, of which each has a normal factor."""
    return _named(n >> tirx.const(1, "int32"), lambda half: x * _power(half) * _power(n - half))


def _signed(x: Any, sign_of: Any) -> Any:
    """``x``, which is not negative, with the sign of another."""
    sign = tirx.reinterpret("uint32", sign_of) & tirx.const(1 << 31, "uint32")
    return tirx.reinterpret("float32", tirx.reinterpret("uint32", x) | sign)
