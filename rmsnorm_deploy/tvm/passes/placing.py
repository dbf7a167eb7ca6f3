"""Where arguments and results lie in memory: arguments anywhere, and each result in a place of its own."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx, topi


def arguments_anywhere(module: Any) -> Any:
    """``module`` with kernels that take arguments that begin at any element's natural place.

    TVM takes it for granted that all begin at multiples of 64 bytes. NumPy's arrays do not, and a CPU reads them as
    fast.
    """
    functions = dict(module.functions_items())
    for name, function in functions.items():
        if isinstance(function, tirx.PrimFunc):
            functions[name] = _unaligned(function)
    return tvm.IRModule(functions, attrs=module.attrs)


def _unaligned(function: Any) -> Any:
    changed = {}
    for parameter in function.params:
        of = parameter.ty
        if isinstance(of, tirx.BufferType):
            changed[parameter] = tirx.decl_buffer(
                *(of.shape, of.dtype, parameter.name, None, of.strides, of.elem_offset, parameter.scope()),
                data_alignment=1,
                offset_factor=of.offset_factor,
                layout=of.layout,
            )
    body = tvm_ffi.structural_map(function.body, (tirx.Var, lambda v: changed.get(v, v)), order="post")
    parameters = [changed.get(p, p) for p in function.params]
    return tirx.PrimFunc(parameters, body, function.ret_type, function.attrs, function.span)


def own_results(module: Any) -> Any:
    """``module`` whose results are never its arguments, its constants or one another, but copies of them.

    A caller may write what it gets.

    Args:
        module: without dataflow blocks.
    """
    main = module.get_global_var("main")
    function = module[main]
    result = function.body.body
    values = {b.var: b.value for block in function.body.blocks for b in block.bindings}
    returned = _followed(result, values)
    several = isinstance(returned, relax.Tuple)
    fields = list(returned.fields) if several else [returned]
    taken: set[Any] = set(function.params)
    foreign = [_is_foreign(field, values, taken) for field in fields]
    if not any(foreign):
        return module
    builder = relax.BlockBuilder(module)
    builder.begin_scope(function.params)
    builder._begin_binding_block()
    pairs = zip(fields, foreign, strict=True)
    copies = [builder.emit_te(topi.identity, field) if copied else field for field, copied in pairs]
    last = builder.emit(relax.Tuple(copies) if several else copies[0])
    block = builder._end_block()
    builder.end_scope()
    body = relax.SeqExpr([*function.body.blocks, block], last)
    changed = relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span)
    builder.update_func(main, changed)
    return builder.finalize()


def _followed(value: Any, values: dict[Any, Any]) -> Any:
    """What a variable is another name of."""
    while isinstance(value, relax.Var) and isinstance(values.get(value), relax.Var | tvm.ir.GenericConst | relax.Tuple):
        value = values[value]
    return value


def _is_foreign(field: Any, values: dict[Any, Any], taken: set[Any]) -> bool:
    """Whether the memory of ``field`` is somebody else's; from now on it is taken."""
    if not isinstance(field.ty, relax.TensorType) or field.ty.shape is None:
        return False
    place = _place(field, values)
    if place is None or place in taken:
        return True
    taken.add(place)
    return False


def _place(value: Any, values: dict[Any, Any]) -> Any:
    """What stands for the memory of ``value``; None where it is, or may be, a constant's."""
    value = _followed(value, values)
    made = values.get(value)
    if isinstance(value, tvm.ir.GenericConst) or isinstance(made, relax.If):
        return None
    if isinstance(made, relax.Call) and made.op in _VIEWS:
        return _place(made.args[0], values)
    if isinstance(made, relax.TupleGetItem):
        whole = _followed(made.tuple_value, values)
        if isinstance(whole, relax.Tuple):
            return _place(whole.fields[made.index], values)
        return None if isinstance(values.get(whole), relax.If) else (whole, made.index)
    return value


_VIEWS = [tvm.ir.Op.get("relax.reshape"), tvm.ir.Op.get("relax.memory.view")]
"""What gives other sizes to the same memory."""
