"""What an expression names, in scratch of one value.

TVM's passes put the value of a name in its place wherever they ask what an expression is: names of names grow with the
power of how many there are, and a polynomial of a polynomial takes minutes. They do not look into what is read from
memory. LLVM keeps such scratch in registers and makes vectors of it as of a name.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx


def in_scratch(function: Any) -> Any:
    """``function`` without names inside the values that its blocks store; values computed twice have a place each."""
    function = s_tir.transform.ConvertSSA()(tvm.IRModule({"main": function}))["main"]
    return function.with_body(tvm_ffi.structural_map(function.body, (s_tir.SBlock, _block)))


def _block(block: Any) -> Any:
    store = block.body
    if not isinstance(store, tirx.BufferStore):
        return block
    value, names = _apart(store.value)
    if not names:
        return block
    places = {let.var: tirx.decl_buffer((1,), let.var.ty.dtype, let.var.name, scope="local") for let in names}

    def put(value: Any) -> Any:
        return tvm_ffi.structural_map(
            value, (tirx.Var, lambda v: tirx.BufferLoad(places[v], [0]) if v in places else v)
        )

    kept = [tirx.BufferStore(places[let.var], put(let.value), [0]) for let in names]
    body = tirx.SeqStmt([*kept, tirx.BufferStore(store.buffer, put(value), store.indices)])
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        [*block.alloc_buffers, *places.values()],
        block.match_buffers,
        block.annotations,
    )


def _apart(value: Any) -> tuple[Any, list[Any]]:
    """``value`` without names, and them in an order in which each is known where it is used."""
    names: list[Any] = []

    def named(let: Any) -> Any:
        users = (i for i, other in enumerate(names) if _reads(other.value, let.var))
        names.insert(next(users, len(names)), let)
        return let.body

    return tvm_ffi.structural_map(value, (tirx.Let, named)), names


def _reads(value: Any, variable: Any) -> bool:
    found = []

    def look(other: Any) -> Any:
        found.append(other.same_as(variable))
        return other

    tvm_ffi.structural_map(value, (tirx.Var, look))
    return any(found)
