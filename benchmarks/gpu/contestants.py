"""Who takes part in every case, on which memory, how a launch is timed, and whether what it computes is right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from benchmarks.gpu.cases import EPSILON, SIZES, Case
from benchmarks.gpu.contract import BYTES, FLOAT32, TYPES, Kernels, Params
from benchmarks.gpu.driver import Gpu, Graph
from benchmarks.gpu.peers import Buffers, Peer
from benchmarks.gpu.values import decode, encode, norm, units

MOST_SETS = 256
L2_TIMES = 4
TILE = 1 << 20  # values that are made at random; the rest repeats them
MOST_SIZE = max(*SIZES, 1 << 15)
VECTOR = 4 * MOST_SIZE  # bytes of a scale, and of a bias
SAMPLE_US = 300.0  # of one measurement


class Arena:
    """Device memory for all cases: inputs and outputs, in sets that take turns."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        self.gpu, self.size = gpu, size
        self.inputs, self.outputs = gpu.allocate(size), gpu.allocate(size)
        self.scale, self.wide_scale, self.bias = (gpu.allocate(VECTOR) for _ in range(3))
        self.dtype = ""

    def fill(self, dtype: str) -> None:
        """Random values of one type everywhere; the scale a second time in float32."""
        if dtype == self.dtype:
            return
        rng = np.random.default_rng(0)
        tile = encode(rng.standard_normal(min(TILE, self.size // BYTES[TYPES[dtype]])), TYPES[dtype])
        self.gpu.upload(self.inputs, tile)
        done = tile.nbytes
        while done < self.size:
            more = min(done, self.size - done)
            self.gpu.copy(self.inputs + done, self.inputs, more, 0)
            done += more
        scale, bias = (rng.uniform(0.5, 2, MOST_SIZE) for _ in range(2))
        self.gpu.upload(self.scale, encode(scale, TYPES[dtype]))
        self.gpu.upload(self.wide_scale, encode(scale, FLOAT32))
        self.gpu.upload(self.bias, encode(bias, TYPES[dtype]))
        self.gpu.synchronize()
        self.dtype = dtype

    def sets(self, case: Case) -> int:
        region = case.inputs * case.tensor_bytes
        wanted = -(-L2_TIMES * self.gpu.l2_bytes // (2 * region))
        return max(1, min(MOST_SETS, wanted, self.size // region))

    def buffers(self, case: Case, index: int) -> Buffers:
        region = case.inputs * case.tensor_bytes
        x, y = self.inputs + index * region, self.outputs + index * region
        added = case.inputs == 2
        return Buffers(
            x=x,
            residual=x + case.tensor_bytes if added else None,
            scale=self.wide_scale if case.scale_type != TYPES[case.dtype] else self.scale,
            y=y,
            sum=y + case.tensor_bytes if added else None,
        )


class Ours:
    name = "ours"

    def __init__(self, kernels: Kernels, arena: Arena, case: Case, stream: int) -> None:
        self.kernels, self.stream = kernels, stream
        self.calls: list[Params] = []
        for index in range(arena.sets(case)):
            p = case.params(EPSILON)
            p.bias = arena.bias if case.bias else None
            for name, pointer in dataclasses.asdict(arena.buffers(case, index)).items():
                setattr(p, name, pointer)
            self.calls.append(p)

    def run(self, index: int) -> None:
        self.kernels.launch(self.calls[index], self.stream)


class Copy:
    """As many bytes as the norm reads, to as many places as it writes."""

    name = "copy"

    def __init__(self, gpu: Gpu, arena: Arena, case: Case, stream: int) -> None:
        self.gpu, self.stream = gpu, stream
        self.bytes = case.inputs * case.tensor_bytes
        self.pairs = [(arena.buffers(case, i).y, arena.buffers(case, i).x) for i in range(arena.sets(case))]

    def run(self, index: int) -> None:
        to, source = self.pairs[index]
        self.gpu.copy(to, source, self.bytes, self.stream)


class Contestant:
    """One who takes part in a case, with one way to run all its launches."""

    def __init__(self, gpu: Gpu, stream: int, name: str, run: Callable[[int], None], count: int, prepared: Peer | None):
        self.gpu, self.stream, self.name, self.count = gpu, stream, name, count
        self.graph: Graph | None = None
        for index in range(min(3, count)):
            run(index)
        gpu.synchronize()

        def launches() -> None:
            for index in range(count):
                run(index)

        self._replay = launches
        self.captured = prepared is None or prepared.capturable
        if prepared is not None and prepared.capturable:
            self._replay = prepared.capture(launches)
        elif prepared is None:
            self.graph = gpu.capture(stream, launches)
            self._replay = lambda: self.graph.replay(stream) if self.graph else None
        self.start, self.end = gpu.event(), gpu.event()
        self.samples: list[float] = []
        self.repeats = 1
        self.sample()
        self.repeats = max(1, min(64, int(SAMPLE_US / max(self.sample() * count, 1e-3))))

    def sample(self) -> float:
        """Microseconds of one launch."""
        self.gpu.record(self.start, self.stream)
        for _ in range(self.repeats):
            self._replay()
        self.gpu.record(self.end, self.stream)
        return self.gpu.microseconds(self.start, self.end) / (self.repeats * self.count)

    def close(self) -> None:
        self._replay = lambda: None
        if self.graph:
            self.graph.close()


def wrong(gpu: Gpu, arena: Arena, case: Case, y: Callable[[int, int], bytes]) -> float:
    """How far the first and last row of a result are off, in units in the last place of the row's largest value.

    Channel-first, a row is a whole image: one entry of the tensor's first dimension.
    """
    data_type, blocks = TYPES[case.dtype], case.shape[0]
    block, axis = case.shape[1:], 0
    row_bytes = case.tensor_bytes // blocks
    buffers = arena.buffers(case, 0)
    place = (case.size, *(1,) * (len(block) - 1))

    def vector(pointer: int, kind: int) -> np.ndarray:
        return decode(gpu.download(pointer, case.size * BYTES[kind]), kind).reshape(place)

    scale = vector(buffers.scale, case.scale_type)
    bias = vector(arena.bias, data_type) if case.bias else None
    most = 0.0
    for row in {0, blocks - 1}:
        x = decode(gpu.download(buffers.x + row * row_bytes, row_bytes), data_type)
        if buffers.residual:
            x = x + decode(gpu.download(buffers.residual + row * row_bytes, row_bytes), data_type)
            x = decode(encode(x, data_type), data_type)
        truth = norm(x.reshape(block), scale, EPSILON, axis=axis, bias=bias, measured=case.measured)
        most = max(most, units(decode(y(row, row_bytes), data_type).reshape(block), truth, data_type, axis))
    return most
