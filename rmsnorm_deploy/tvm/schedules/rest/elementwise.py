"""Kernels in which each value of a result is computed by itself: chains, casts, masks, copies, gathers, rotations.

A kernel is one pass: what is computed on the way is computed where it is used. The innermost loop is left to LLVM,
which makes vectors of it on any CPU, with a loop for what is left over. The loops around it are one, which threads
share where there is enough to do; each value is computed in the same way by however many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from rmsnorm_deploy.tvm.schedules.rest.names import in_scratch

PARALLEL_FROM = 65536
"""Values of a result from which threads are woken."""
ROW = 4096
"""A single row is divided into at most so many values for each task."""
TILE = 16
"""Of a transpose: rows and columns that are in the first cache together."""
MOST_UNROLLED = 8
"""An innermost loop of at most so many turns is no loop for vectors: the one around it is."""


def scheduled(function: Any) -> Any | None:
    """The kernel with a schedule; None where it has sums, or something that is not known here."""
    schedule = s_tir.Schedule(function)
    blocks = _blocks(schedule)
    if not blocks or not all(_plain(schedule, b) for b in blocks) or any(_empty(schedule, b) for b in blocks):
        return None
    results = set(function.params)
    kept = []
    chooses = [_joins(schedule.get(b)) for b in blocks]
    for i, block in enumerate(blocks):
        result = schedule.get(block).writes[0].source in results
        if result or (_dear(schedule, block) and (any(chooses[i + 1 :]) or _smaller(schedule, block, function))):
            kept.append(block)
        else:
            schedule.compute_inline(block)
    sizes = [_of_result(schedule, b) for b in kept]
    for block in kept:
        _order(schedule, block)
    return in_scratch(_serial_where_small(schedule.mod["main"], sizes)).with_attr("tirx.is_scheduled", True)


def _blocks(schedule: Any) -> list[Any]:
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


def _plain(schedule: Any, block: Any) -> bool:
    """Whether it stores one value for each turn of its loops, wherever they are."""
    body = schedule.get(block)
    return (
        len(body.writes) == 1
        and body.init is None
        and not body.alloc_buffers
        and not body.match_buffers
        and isinstance(body.body, tirx.BufferStore)
        and all(v.iter_type == tirx.IterVar.DataPar for v in body.iter_vars)
        and len(body.body.indices) == len(body.iter_vars) > 0
        and all(i.same_as(v.var) for i, v in zip(body.body.indices, body.iter_vars, strict=True))
        and len(schedule.get_loops(block)) == len(body.iter_vars)
    )


def _empty(schedule: Any, block: Any) -> bool:
    """Whether it is known to have nothing to do."""
    extents = [v.dom.extent for v in schedule.get(block).iter_vars]
    return any(isinstance(e, tirx.IntImm) and int(e) == 0 for e in extents)


def _of_result(schedule: Any, block: Any) -> Any:
    """How many values it stores."""
    total: Any = tirx.IntImm("int64", 1)
    for size in schedule.get(block).writes[0].source.ty.shape:
        total = total * size
    return total


def _order(schedule: Any, block: Any) -> None:
    loops = list(schedule.get_loops(block))
    along = _read_along(schedule, block)
    if along is not None:
        loops = _tiled(schedule, block, along)
    inner = [loops.pop()]
    while loops and _small(schedule.get(inner[0]).extent):
        inner.insert(0, loops.pop())
    alone = all(_one(schedule.get(loop).extent) for loop in loops)
    if alone:
        inner, loops = [*loops, *inner], []
    turns = schedule.fuse(*inner) if len(inner) > 1 else inner[0]
    if loops:
        if _joins(schedule.get(block)):
            schedule.annotate(turns, "pragma_loop_partition_hint", 1)
        schedule.parallel(schedule.fuse(*loops[: len(loops) - (along is not None)]))
    elif isinstance(schedule.get(turns).extent, tirx.IntImm):
        count = int(schedule.get(turns).extent)
        turn = next(n for n in range(min(count, ROW), 0, -1) if count % n == 0)
        if turn * 16 >= ROW and turn < count:
            outer, _ = schedule.split(turns, [count // turn, turn])
            schedule.parallel(outer)


def _dear(schedule: Any, block: Any) -> bool:
    """Whether a value takes a polynomial, whose names can stand neither in a choice nor be computed many times."""
    return _has(schedule.get(block).body, tirx.Let)


def _smaller(schedule: Any, block: Any, function: Any) -> bool:
    """Whether a value is wanted many times: a gate for each of many rows."""
    shape = schedule.get(block).writes[0].source.ty.shape
    many = all(isinstance(p.ty, tirx.BufferType) and len(p.ty.shape) == len(shape) for p in function.params[-1:])
    same = many and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(shape, function.params[-1].ty.shape, strict=True)
    )
    return not same


def _joins(block: Any) -> bool:
    """Whether what is stored comes from one place or another, as for tensors that are joined."""
    choice = tvm.ir.Op.get("prim.if_then_else")
    return _has(block.body, tvm.ir.Call, lambda call: call.op.same_as(choice))


def _has(statement: Any, kind: Any, wanted: Callable[[Any], bool] = lambda _: True) -> bool:
    found = []

    def look(node: Any) -> Any:
        found.append(wanted(node))
        return node

    tvm_ffi.structural_map(statement, (kind, look), order="post")
    return any(found)


def _one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def _small(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) <= MOST_UNROLLED


def _read_along(schedule: Any, block: Any) -> int | None:
    """The dimension along which what is read lies side by side, where that is not the last one that is stored."""
    body = schedule.get(block)
    variables = [v.var for v in body.iter_vars]
    last = len(variables) - 1
    found = None
    if len(variables) < 2 or _small(body.iter_vars[-1].dom.extent):
        return None
    for region in body.reads:
        if not region.region:
            continue
        ends = [i for i, v in enumerate(variables) if region.region[-1].min.same_as(v)]
        if ends and ends[0] != last and any(r.min.same_as(variables[last]) for r in region.region[:-1]):
            found = ends[0]
    return found


def _tiled(schedule: Any, block: Any, along: int) -> list[Any]:
    """The loops of a transpose, in tiles."""
    loops = list(schedule.get_loops(block))
    last = loops.pop()
    reading = loops.pop(along)
    far, near = schedule.split(reading, [None, TILE])
    blocks, values = schedule.split(last, [None, TILE])
    schedule.reorder(*loops, far, blocks, near, values)
    outer = schedule.fuse(*loops, far, blocks)
    return [outer, near, values]


def _serial_where_small(function: Any, sizes: list[Any]) -> Any:
    """Loops for threads become ordinary ones where a result is small: decided at run time if its size is known then."""
    counts = list(sizes)

    def changed(statement: Any) -> Any:
        if isinstance(statement, tirx.SeqStmt):
            return tirx.SeqStmt([changed(s) for s in statement.seq])
        if not isinstance(statement, tirx.For):
            return statement
        count = counts.pop(0)
        if statement.kind != tirx.ForKind.PARALLEL:
            return statement
        serial = _with_kind(statement, tirx.ForKind.SERIAL)
        if isinstance(count, tirx.IntImm):
            return statement if int(count) >= PARALLEL_FROM else serial
        return tirx.IfThenElse(count < tirx.IntImm("int64", PARALLEL_FROM), serial, statement)

    root = function.body
    block = root.block
    body = changed(block.body)
    block = s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
    return function.with_body(s_tir.SBlockRealize(root.iter_values, root.predicate, block))


def _with_kind(loop: Any, kind: Any) -> Any:
    return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body, None, loop.annotations)
