"""A family of schedules for the tests of tuning: some of them crash, hang, are wrong or do not compile."""

import dataclasses
import os

import tvm
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.script import from_source
from tvm.script import ir as I
from tvm.script import tirx as T

from rmsnorm_deploy.tvm.schedules.cpu.choose import CpuSchedules
from rmsnorm_deploy.tvm.schedules.cpu.writer import CpuSchedule
from rmsnorm_deploy.tvm.schedules.protocol import Schedules

SLOW, VERY_SLOW = 1, 2
"""Sleep before they compute: a measurement takes a tenth of a second, or half a one."""
CRASHES, HANGS, WRONG, IS_REFUSED, CRASHES_THE_COMPILER = 3, 4, 5, 6, 7


@dataclasses.dataclass(frozen=True)
class OddSchedule:
    kind: int = 0
    number: int = 0


chosen = [OddSchedule(), OddSchedule(number=1)]
"""What the candidates are; a test replaces it."""


@dataclasses.dataclass(frozen=True)
class OddSchedules(Schedules[OddSchedule]):
    """Equal to what comes of it in another process, as all are: a kernel is built once, before a device is held."""

    def refusal(self, norm):
        return None

    def default(self, norm):
        return chosen[0]

    def candidates(self, norm):
        return list(chosen)

    def trimmed(self, norm, schedule, most_values):
        return schedule

    def kernel(self, norm, schedule):
        if schedule.kind == IS_REFUSED:
            raise ValueError("there is no such kernel")
        if schedule.kind == CRASHES_THE_COMPILER:
            os.abort()
        computed = dataclasses.replace(norm, parameters=_other(norm)) if schedule.kind == WRONG else norm
        return _with_before(
            CpuSchedules().kernel(computed, CpuSchedule()),
            {SLOW: '"usleep", 2000', VERY_SLOW: '"usleep", 20000', CRASHES: '"abort"', HANGS: '"pause"'}.get(
                schedule.kind
            ),
        )


def _with_before(function, first):
    """``function``, which calls ``first`` before it does anything else."""
    if first is None:
        return function
    text = f'@T.prim_func(s_tir=True)\ndef f():\n    T.evaluate(T.call_extern("int32", {first}))\n'
    before = from_source(text, {"T": T, "I": I}).body
    block = function.body.block
    body = tvm.tirx.SeqStmt([before.block.body if hasattr(before, "block") else before, block.body])
    root = SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, body, block.init, block.alloc_buffers)
    return function.with_body(SBlockRealize([], True, root))


def _other(norm):
    return dataclasses.replace(norm.parameters, epsilon=1.0)
