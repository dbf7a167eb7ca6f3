"""What is calculated from constants alone is calculated now, unless that would only make weights larger."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any

import tvm
from tvm import relax

from rmsnorm_deploy.tvm.passes.views import sizes_of

LARGE = 4096
"""Bytes from which on a constant is a weight."""


def fold_constants(module: Any) -> Any:
    """``module`` with the results of constants as constants.

    A weight stays what the model has where its result would be larger, or would be there beside it because somebody
    else reads it; and where the result is only another view of it.
    """
    main = module.get_global_var("main")
    kept = _kept(module, module[main])
    if not kept:
        return relax.transform.FoldConstant()(module)
    hiding = _Hiding(kept)
    hidden = module.clone()
    function = module[main]
    body = hiding.visit_expr(function.body)
    parameters = [*function.params, *hiding.arguments]
    hidden.update_func(main, _function(function, parameters, body))
    folded = relax.transform.FoldConstant()(hidden)
    function = folded[main]
    inputs = list(function.params)[: -len(hiding.arguments)]
    constants = dict(zip(list(function.params)[len(inputs) :], hiding.constants, strict=True))
    folded.update_func(main, _function(function, inputs, _Showing(constants).visit_expr(function.body)))
    return folded


def _function(like: Any, parameters: list[Any], body: Any) -> Any:
    return relax.Function(parameters, body, like.ret_ty, like.is_pure, like.attrs, like.span)


@dataclasses.dataclass(frozen=True)
class _Known:
    """A value that is known: of ``size`` bytes, made of the large constants ``sources``."""

    size: int
    sources: frozenset[Any]


def _kept(module: Any, function: Any) -> set[Any]:
    """The large constants that are not to be folded, as tensors."""
    bindings = [b for block in function.body.blocks for b in block.bindings]
    values = {b.var: b.value for b in bindings if isinstance(b, relax.VarBinding)}
    readers: collections.Counter[Any] = collections.Counter()
    for value in [*values.values(), function.body.body]:
        if not _is_constant(value) and not isinstance(value, relax.Var):
            readers.update(_source(part, values) for part in _operands(value))
    known: dict[Any, _Known] = {}
    kept: set[Any] = set()
    for variable, value in values.items():
        if not isinstance(value, relax.Call):
            continue
        sources = [_source(part, values) for part in _operands(value)]
        operands = [_known(source, known) for source in dict.fromkeys(sources)]
        size = _bytes(variable)
        if not sources or size is None or any(o is None for o in operands):
            continue
        found = [(s, o) for s, o in zip(dict.fromkeys(sources), operands, strict=True) if o is not None and o.sources]
        made_of = frozenset(tensor for _, o in found for tensor in o.sources)
        replaced = sum(o.size for source, o in found if readers[source] == sources.count(source))
        if made_of and (size > max(replaced, LARGE - 1) or _is_view(module, value)):
            kept |= made_of
        else:
            known[variable] = _Known(size, made_of)
    return kept


def _known(source: Any, known: dict[Any, _Known]) -> _Known | None:
    if not isinstance(source, tvm.runtime.Tensor):
        return known.get(source)
    size = math.prod(source.shape) * source.dtype.itemsize
    return _Known(size, frozenset([source]) if size >= LARGE else frozenset())


def _operands(value: Any) -> list[Any]:
    """The tensors that an expression reads."""
    if isinstance(value, relax.Tuple):
        return [part for field in value.fields for part in _operands(field)]
    if isinstance(value, relax.Call):
        return [part for argument in value.args for part in _operands(argument)]
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    return [value] if isinstance(value, relax.Var) or _is_constant(value) else []


def _source(value: Any, values: dict[Any, Any]) -> Any:
    """What a value is another name of: a constant's tensor, or a variable."""
    while isinstance(value, relax.Var) and (
        isinstance(values.get(value), relax.Var) or _is_constant(values.get(value))
    ):
        value = values[value]
    return value.value if _is_constant(value) else value


def _is_constant(value: Any) -> bool:
    return isinstance(value, tvm.ir.GenericConst) and isinstance(value.value, tvm.runtime.Tensor)


def _bytes(variable: Any) -> int | None:
    sizes = sizes_of(variable)
    if sizes is None or not all(isinstance(d, tvm.tirx.IntImm) for d in sizes):
        return None
    return math.prod(int(d) for d in sizes) * int(variable.ty.dtype.dtype.itemsize)


def _is_view(module: Any, call: Any) -> bool:
    """Whether the call is a kernel that only copies, which a later pass leaves out."""
    if call.op != tvm.ir.Op.get("relax.call_tir"):
        return False
    return bool(relax.analysis.has_reshape_pattern(module[call.args[0]]))


@relax.expr_functor.mutator
class _Hiding(relax.PyExprMutator):  # type: ignore[misc]
    """Some constants as arguments: what is not known cannot be folded."""

    def __init__(self, kept: set[Any]) -> None:
        super().__init__()
        self.kept = kept
        self.made: dict[Any, Any] = {}
        self.arguments: list[Any] = []
        self.constants: list[Any] = []

    def visit_generic_const_(self, constant: Any) -> Any:
        if not _is_constant(constant) or constant.value not in self.kept:
            return constant
        if constant.value not in self.made:
            variable = relax.Var(f"kept_{len(self.arguments)}", constant.ty)
            self.made[constant.value] = variable
            self.arguments.append(variable)
            self.constants.append(constant)
        return self.made[constant.value]


@relax.expr_functor.mutator
class _Showing(relax.PyExprMutator):  # type: ignore[misc]
    """The same constants again."""

    def __init__(self, constants: dict[Any, Any]) -> None:
        super().__init__()
        self.constants = constants

    def visit_var_(self, variable: Any) -> Any:
        found = self.constants.get(variable)
        return super().visit_var_(variable) if found is None else found
