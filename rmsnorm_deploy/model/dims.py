"""Dimensions that are arithmetic of others, such as ``2*seq`` or ``past + seq``. onnx_ir parses them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

MOST_LETTERS = 1000
"""A longer text is a name: no exporter writes such arithmetic, and parsing it might take for ever."""


def names_in(text: str) -> frozenset[str] | None:
    """The names in a dimension that reads as arithmetic; None for a plain name, such as ``seq`` or ``past_len.1``.

    A name may look like arithmetic: ``seq-len``, ``a/b``. So the result is a reason to calculate only where the names
    are dimensions of their own.
    """
    expression = _parsed(text)
    if expression is None or not expression.free_symbols or getattr(expression, "name", None) == text.strip():
        return None
    return frozenset(symbol.name for symbol in expression.free_symbols)


def evaluated(
    text: str, value_of: Callable[[str], Any], functions: Mapping[str, Callable[..., Any]] | None = None
) -> Any:
    """A dimension that is arithmetic, from the values of its names: integers, or what has ``+``, ``*``, ``//``, ``%``.

    Divisions round down.

    Args:
        text: what :func:`names_in` finds names in.
        value_of: gives the value of a name.
        functions: what calculates ``Max`` and ``Min``; Python's own by default.

    Raises:
        ValueError: it is not arithmetic, or is not whole.
    """
    expression = _parsed(text)
    if expression is None:
        raise ValueError(f"'{text}' is not arithmetic")
    return _value(expression, value_of, functions or {"Max": max, "Min": min})


def _parsed(text: str) -> Any:
    """As a SymPy expression; None where onnx_ir cannot read it, and for powers, which SymPy would multiply out."""
    if "**" in text or "^" in text or len(text) > MOST_LETTERS:
        return None
    try:
        return ir.SymbolicDim(text)._expr  # the public evaluate() takes numbers only, and TVM's are expressions
    except (ValueError, TypeError, RecursionError, ZeroDivisionError):
        return None


def _value(expression: Any, value_of: Callable[[str], Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return value_of(expression.name)
    kind = type(expression).__name__
    if kind == "floor":
        expression = expression.args[0]
    above, below = expression.as_numer_denom()
    if below != 1:
        return _value(above, value_of, functions) // _value(below, value_of, functions)
    if kind == "Pow" and expression.exp.is_Integer and 0 < expression.exp <= MOST_LETTERS:  # a * a, to SymPy
        return functools.reduce(operator.mul, [_value(expression.base, value_of, functions)] * int(expression.exp))
    arguments = [_value(a, value_of, functions) for a in expression.args]
    if kind == "Mod":
        return operator.mod(*arguments)
    fold = {"Add": operator.add, "Mul": operator.mul, **functions}.get(kind)
    if fold is None:
        raise ValueError(f"'{expression}' is not whole")
    return functools.reduce(fold, arguments)
