"""Compiles what torch.compile and Triton need beside other steps, so that the measurement finds it in their caches."""

from __future__ import annotations

import sys

from benchmarks.gpu.cases import EPSILON, Case
from benchmarks.gpu.contestants import Arena
from benchmarks.gpu.driver import Gpu
from benchmarks.gpu.peers import Peer


def compile_part(gpu: Gpu, others: list[Peer], cases: list[Case], part: str) -> None:
    """Compile one part of what has to be compiled, so that the compilers' caches have it when it is measured.

    In the order in which it is measured, with the rows that are measured: what is compiled depends on them.
    """
    index, count = map(int, part.split("/"))
    wanted = [case for case in cases if case.variant == "plain"][index::count]
    arena = Arena(gpu, max((case.inputs * case.tensor_bytes for case in wanted if case.telling), default=1 << 22))
    for case in wanted:
        if case.inputs * case.tensor_bytes > arena.size:
            continue
        arena.fill(case.dtype)
        shape = (case.rows, case.size)
        for peer in others:
            if not peer.compiles or not peer.takes(case.op, case.dtype):
                continue
            if case.telling or not peer.must_compile(case.op, case.dtype, shape):
                try:
                    peer.prepare(case.op, case.dtype, shape, EPSILON, [arena.buffers(case, 0)])(0)
                except Exception as error:  # it will be noted where it is measured
                    print(f"{case.name}: {peer.name}: {error}", file=sys.stderr)
                peer.forget()
    gpu.synchronize()
