"""TVMScript run as the Python that it looks like: TVM's own parser takes ten times as long for the same function.

Only what kernels here are written in is known; what else a text has is left to TVM's parser.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, TypeVar

import tvm
from tvm import tirx
from tvm.script import from_source
from tvm.script import ir as I
from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as built

_Node = TypeVar("_Node", bound=ast.AST)


def kernel_of(source: str) -> Any:
    """The ``tvm.tirx.PrimFunc`` that ``source``, TVMScript, describes."""
    module = ast.parse(source)
    try:
        function = _Python().function(module)
    except _UnknownError:
        return from_source(source, {"T": T, "I": I})
    names: dict[str, Any] = {"T": built, "_named": _named, "_loop": _loop, "_serial": _serial}
    names |= {
        "_equal": tirx.EQ,
        "_different": tirx.NE,
        "_both": tirx.And,
        "_not": tirx.Not,
        "_store": built.buffer_store,
    }
    exec(compile(ast.Module([function], []), "<kernel>", "exec"), names)
    with IRBuilder() as builder:
        names[function.name]()
    return builder.get()


class _UnknownError(Exception):
    """The text has something that only TVM's parser knows."""


def _named(name: str, value: Any) -> Any:
    if isinstance(value, tvm.ir.Var):
        IRBuilder.name(name, value)
    return value


def _loop(name: str, frame: Any) -> Iterator[Any]:
    with frame as variable:
        yield _named(name, variable)


def _serial(*bounds: Any) -> Any:
    return built.serial(*((0, *bounds) if len(bounds) == 1 else bounds))


def _new(kind: type[_Node], *fields: Any) -> _Node:
    """A node with the place in a text that Python wants of each; looking for those that have none takes longer."""
    return kind(*fields, lineno=1, col_offset=0)  # type: ignore[call-arg]  # the kinds that are made here have both


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return _new(ast.Call, _new(ast.Name, name, ast.Load()), list(arguments), [])


def _t(name: str, *arguments: ast.expr) -> ast.Call:
    return _new(ast.Call, _new(ast.Attribute, _new(ast.Name, "T", ast.Load()), name, ast.Load()), list(arguments), [])


class _Python(ast.NodeTransformer):
    """TVMScript as Python that builds the function when it runs."""

    def __init__(self) -> None:
        self.known: set[str] = set()

    def name(self, name: str) -> None:
        """A new name. One for two things at a time would be one thing in Python."""
        if name in self.known:
            raise _UnknownError
        self.known.add(name)

    def function(self, module: ast.Module) -> ast.FunctionDef:
        """The function without parameters that builds the one function of ``module``."""
        (node,) = module.body
        if not isinstance(node, ast.FunctionDef) or len(node.decorator_list) != 1:
            raise _UnknownError
        decorator = node.decorator_list[0]
        keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
        if any(k.arg != "s_tir" for k in keywords):
            raise _UnknownError
        body: list[ast.stmt] = [_new(ast.Expr, _t("func_name", _new(ast.Constant, node.name)))]
        for argument in node.args.args:
            if argument.annotation is None or ast.unparse(argument.annotation) != "T.handle":
                raise _UnknownError
            self.name(argument.arg)
            value = _t("arg", _new(ast.Constant, argument.arg), _t("handle"))
            body.append(_new(ast.Assign, [_new(ast.Name, argument.arg, ast.Store())], value))
        body += self.statements(node.body)
        frame = _t("prim_func")
        frame.keywords = list(keywords)
        nothing = ast.arguments([], [], None, [], [], None, [])
        return _new(ast.FunctionDef, node.name, nothing, [_new(ast.With, [ast.withitem(frame)], body)], [])

    def statements(self, nodes: list[ast.stmt]) -> list[ast.stmt]:
        """Each of them changed."""
        return [self.visit(node) for node in nodes]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Refuse statements that are not known."""
        if isinstance(node, ast.stmt | ast.comprehension | ast.Lambda | ast.IfExp):
            raise _UnknownError
        return super().generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            raise _UnknownError
        if ast.unparse(call.func) not in ("T.func_attr", "T.reads", "T.writes", "T.evaluate"):
            raise _UnknownError
        return _new(ast.Expr, self.visit(call))

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        (target,) = node.targets
        value = self.visit(node.value)
        if isinstance(target, ast.Subscript):
            index = target.slice
            indices = _new(ast.List, list(index.elts) if isinstance(index, ast.Tuple) else [index], ast.Load())
            return _new(ast.Expr, _call("_store", self.visit(target.value), value, self.visit(indices)))
        makes = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in _MAKERS
        if not isinstance(target, ast.Name) or not makes:
            raise _UnknownError
        self.name(target.id)
        return _new(ast.Assign, [target], _call("_named", _new(ast.Constant, target.id), value))

    def visit_For(self, node: ast.For) -> ast.stmt:
        if not isinstance(node.target, ast.Name) or not isinstance(node.iter, ast.Call) or node.orelse:
            raise _UnknownError
        frame = self.visit(node.iter)
        if isinstance(node.iter.func, ast.Name):
            frame.func = _new(ast.Name, "_serial", ast.Load())
        elif ast.unparse(node.iter.func) not in _LOOPS:
            raise _UnknownError
        before = set(self.known)
        self.name(node.target.id)
        loop = _call("_loop", _new(ast.Constant, node.target.id), frame)
        changed = _new(ast.For, node.target, loop, self.statements(node.body), [])
        self.known = before
        return changed

    def visit_With(self, node: ast.With) -> ast.stmt:
        if len(node.items) != 1 or node.items[0].optional_vars is not None:
            raise _UnknownError
        before = set(self.known)
        changed = _new(ast.With, [ast.withitem(self.visit(node.items[0].context_expr))], self.statements(node.body))
        self.known = before
        return changed

    def visit_If(self, node: ast.If) -> ast.stmt:
        branches: list[ast.stmt] = [_new(ast.With, [ast.withitem(_t("Then"))], self.statements(node.body))]
        if node.orelse:
            branches.append(_new(ast.With, [ast.withitem(_t("Else"))], self.statements(node.orelse)))
        return _new(ast.With, [ast.withitem(_t("If", self.visit(node.test)))], branches)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) != 1:
            raise _UnknownError
        left, right = self.visit(node.left), self.visit(node.comparators[0])
        names: dict[type[ast.cmpop], str] = {ast.Eq: "_equal", ast.NotEq: "_different"}
        name = names.get(type(node.ops[0]))
        return _new(ast.Compare, left, node.ops, [right]) if name is None else _call(name, left, right)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        if not isinstance(node.op, ast.And):
            raise _UnknownError
        first: ast.expr
        first, *others = [self.visit(v) for v in node.values]
        for other in others:
            first = _call("_both", first, other)
        return first

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        value = self.visit(node.operand)
        return _call("_not", value) if isinstance(node.op, ast.Not) else _new(ast.UnaryOp, node.op, value)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return _new(ast.Subscript, self.visit(node.value), self.visit(node.slice), ast.Load())


_LOOPS = ("T.parallel", "T.vectorized", "T.unroll", "T.serial", "T.thread_binding")
_MAKERS = ("T.match_buffer", "T.decl_buffer", "T.sblock_alloc_buffer", "T.int64")
