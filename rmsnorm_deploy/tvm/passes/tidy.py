"""What TVM's own passes leave to do in every run though nobody needs it: 0.1 us for each object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

_Bindings = list[Any]


def shared_tensors(module: Any) -> Any:
    """``module``, after its memory was planned, with one tensor object for each place in memory.

    The plan lets values of different times share storage, and gives each its own tensor object. Values of one storage,
    offset, shape and type can have one object, as no two of them live at a time.
    """
    return _changed(module, _share)


def without_unread_tuples(module: Any) -> Any:
    """``module``, after the last pass that looks into tuples, without those of kernels' results that nobody reads."""
    return _changed(module, _drop_tuples)


def _changed(module: Any, change: Callable[[list[_Bindings], Any], list[_Bindings]]) -> Any:
    """Each function's bindings changed. Branches are left alone: what is allocated there is not there outside."""
    functions = dict(module.functions_items())
    for name, function in functions.items():
        if isinstance(function, relax.Function):
            blocks = change([list(block.bindings) for block in function.body.blocks], function.body.body)
            body = relax.SeqExpr([relax.BindingBlock(bindings) for bindings in blocks], function.body.body)
            functions[name] = relax.Function(
                function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span
            )
    return tvm.IRModule(functions, attrs=module.attrs)


def _share(blocks: list[_Bindings], result: Any) -> list[_Bindings]:
    del result
    allocation = tvm.ir.Op.get("relax.memory.alloc_tensor")
    made: dict[Any, list[tuple[Any, Any]]] = {}
    for bindings in blocks:
        for i, binding in enumerate(bindings):
            value = getattr(binding, "value", None)
            if not (isinstance(binding, relax.VarBinding) and isinstance(value, relax.Call) and value.op == allocation):
                continue
            same_storage = made.setdefault(value.args[0], [])
            first = next((var for call, var in same_storage if tvm_ffi.structural_equal(call, value)), None)
            if first is None:
                same_storage.append((value, binding.var))
            else:
                bindings[i] = relax.VarBinding(binding.var, first)
    return blocks


def _drop_tuples(blocks: list[_Bindings], result: Any) -> list[_Bindings]:
    read = set(relax.analysis.all_vars(result))
    kept: list[_Bindings] = []
    for bindings in reversed(blocks):
        left = []
        for binding in reversed(bindings):
            plain = isinstance(binding, relax.VarBinding) and isinstance(binding.value, relax.Tuple | relax.Var)
            if plain and binding.var not in read:
                continue
            read |= set(relax.analysis.all_vars(binding.value))
            left.append(binding)
        kept.append(left[::-1])
    return kept[::-1]
