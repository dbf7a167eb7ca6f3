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
    return _in_names(_exp, x)


def tanh(x: Any) -> Any:
    """Of x: u / (u + 2) with u = e^(2x) - 1, of the absolute value: nothing cancels."""
    return _in_names(_tanh, x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x), of which the small side is computed: results of any size are right."""
    return _in_names(_sigmoid, x)


def silu(x: Any) -> Any:
    """The product of x and its sigmoid."""
    return _in_names(lambda named, a: a * _sigmoid(named, a), x)


def erf(x: Any) -> Any:
    """The error function."""
    return _in_names(_erf, x)


def gelu(x: Any) -> Any:
    """The product x / 2 * (1 + erf(x / sqrt(2)))."""
    return _in_names(lambda named, a: a * _f32(0.5) * (_f32(1.0) + _erf(named, named(a * _f32(math.sqrt(0.5))))), x)


def gelu_tanh(x: Any) -> Any:
    """The product x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""

    def of(named: _Names, a: Any) -> Any:
        inner = a * (_f32(1.0) + _f32(0.044715) * a * a) * _f32(math.sqrt(2.0 / math.pi))
        return a * _f32(0.5) * (_f32(1.0) + _tanh(named, named(inner)))

    return _in_names(of, x)


# -- names


class _Names:
    """What an expression computes once, in one chain: ``let a = ... in let b = ... in ...``.

    TVM's passes visit the names inside of another's value twice, and those inside of these four times.
    """

    def __init__(self) -> None:
        self.made: list[tuple[Any, Any]] = []

    def __call__(self, value: Any) -> Any:
        """The name of a value, which may hold names that were made before."""
        value = tirx.convert(value)
        self.made.append((tirx.Var("t", value.ty), value))
        return self.made[-1][0]


def _in_names(function: Callable[[_Names, Any], Any], x: Any) -> Any:
    """A function of a name of ``x``, behind all names that it makes."""
    named = _Names()
    result = function(named, named(x))
    for name, value in reversed(named.made):
        result = tirx.Let(name, value, result)
    return result


# -- the functions, of a value that has a name


def _exp(named: _Names, x: Any) -> Any:
    n, above = _reduced(named, _limited(named, x, _LEAST_EXP, _MOST_EXP))
    return _scaled(named, _f32(1.0) + above, n)


def _tanh(named: _Names, x: Any) -> Any:
    n, above = _reduced(named, _limited(named, tirx.abs(x) * _f32(2.0), 0.0, 20.0))
    power = named(_power(n))
    u = named(power * above + (power - _f32(1.0)))
    return _signed(u / (u + _f32(2.0)), x)


def _sigmoid(named: _Names, x: Any) -> Any:
    e = named(_exp(named, named(-tirx.abs(x))))
    return tirx.Select(x < _f32(0.0), e, _f32(1.0)) / (_f32(1.0) + e)


def _erf(named: _Names, x: Any) -> Any:
    small = x + x * _polynomial(named(x * x), _ERF)
    power = named(_polynomial(_limited(named, tirx.abs(x), 0.0, 3.95), _LOG_ERFC))
    return tirx.Select(tirx.abs(x) < _f32(0.92), small, _signed(_f32(1.0) - _exp(named, power), x))


# -- pieces


def _f32(value: float) -> Any:
    return tirx.const(value, "float32")


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Highest power first."""
    total = _f32(coefficients[0])
    for c in coefficients[1:]:
        total = total * x + _f32(c)
    return total


def _limited(named: _Names, x: Any, low: float, high: float) -> Any:
    """``x`` between the two, NaN as it is: a comparison with it is false."""
    least = named(tirx.Select(x < _f32(low), _f32(low), x))
    return named(tirx.Select(least > _f32(high), _f32(high), least))


def _reduced(named: _Names, x: Any) -> tuple[Any, Any]:
    """n, an int32, and e^r - 1, where x = n ln(2) + r with |r| <= ln(2) / 2."""
    shifted = named(x * _f32(1.0 / math.log(2.0)) + _f32(_ROUNDER))
    n = named(tirx.reinterpret("int32", shifted) - tirx.reinterpret("int32", _f32(_ROUNDER)))
    whole = named(shifted - _f32(_ROUNDER))
    r = named(x - whole * _f32(_LN2_HIGH) - whole * _f32(_LN2_LOW))
    return n, named(r + r * r * _polynomial(r, _EXP))


def _power(n: Any) -> Any:
    """2^n for an exponent of a normal number."""
    return tirx.reinterpret("float32", (n + tirx.const(127, "int32")) << tirx.const(23, "int32"))


def _scaled(named: _Names, x: Any, n: Any) -> Any:
    """The product x * 2^n in two steps, of which each has a normal factor."""
    half = named(n >> tirx.const(1, "int32"))
    return x * _power(half) * _power(n - half)


def _signed(x: Any, sign_of: Any) -> Any:
    """``x``, which is not negative, with the sign of another."""
    sign = tirx.reinterpret("uint32", sign_of) & tirx.const(1 << 31, "uint32")
    return tirx.reinterpret("float32", tirx.reinterpret("uint32", x) | sign)
