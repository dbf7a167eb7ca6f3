"""What a launch on a GPU promises beside its numbers: order on the stream, CUDA graphs, 64-bit offsets."""

import numpy as np
import pytest

from benchmarks.gpu.contract import FLOAT16, FLOAT32, params
from benchmarks.gpu.values import decode, encode, norm, units

ROWS, SIZE = 64, 4096


@pytest.fixture
def call(on_device):
    """A call on device memory; what it has to give, and a way to read what it gave."""
    gpu = on_device.gpu
    rng = np.random.default_rng(0)
    x, scale = encode(rng.standard_normal((ROWS, SIZE)), FLOAT32), encode(rng.standard_normal(SIZE), FLOAT32)
    memory = {"x": gpu.allocate(x.nbytes), "y": gpu.allocate(x.nbytes), "scale": gpu.allocate(scale.nbytes)}
    gpu.upload(memory["x"], x)
    gpu.upload(memory["scale"], scale)
    gpu.fill(memory["y"], 0xFF, x.nbytes)
    gpu.synchronize()
    p = params(FLOAT32, (ROWS, SIZE), 1, 1e-6)
    for name, pointer in memory.items():
        setattr(p, name, pointer)
    truth = norm(x.astype(np.float64), scale.astype(np.float64), 1e-6)
    p.of_truth = lambda: units(decode(gpu.download(p.y, x.nbytes), FLOAT32).reshape(truth.shape), truth, FLOAT32)
    yield p
    for pointer in memory.values():
        gpu.free(pointer)


def launch(on_device, p):
    assert on_device.start(p) == 0


def test_a_launch_keeps_its_place_on_the_stream(on_device, call):
    """The copy behind it, on the same stream and without waiting, sees its result."""
    gpu = on_device.gpu
    copy = gpu.allocate(ROWS * SIZE * 4)
    for _ in range(20):
        launch(on_device, call)
        gpu.copy(copy, call.y, ROWS * SIZE * 4, on_device.stream)
    gpu.synchronize()
    assert gpu.download(copy, ROWS * SIZE * 4) == gpu.download(call.y, ROWS * SIZE * 4)
    assert call.of_truth() <= 3
    gpu.free(copy)


def test_a_launch_can_be_captured_in_a_graph(on_device, call):
    gpu = on_device.gpu
    launch(on_device, call)  # the first of all loads the kernel
    gpu.synchronize()
    graph = gpu.capture(on_device.stream, lambda: [launch(on_device, call) for _ in range(3)])
    for _ in range(3):
        graph.replay(on_device.stream)
    gpu.synchronize()
    graph.close()
    assert call.of_truth() <= 3


def test_offsets_beyond_32_bits_on_the_device(on_device):
    gpu, size = on_device.gpu, 4096
    rows = 2**32 // size + 5
    if gpu.free_bytes() < 2 * rows * size * 2 + 2**30:
        pytest.skip("needs 17 GiB of device memory")
    x = gpu.allocate(rows * size * 2)
    y = gpu.allocate(rows * size * 2)
    scale = gpu.allocate(size * 2)
    try:
        gpu.fill(x, 0, rows * size * 2)
        gpu.fill(y, 0xFF, rows * size * 2)
        rng = np.random.default_rng(1)
        last, weights = encode(rng.standard_normal(size), FLOAT16), encode(rng.standard_normal(size), FLOAT16)
        gpu.upload(scale, weights)
        gpu.upload(x + (rows - 1) * size * 2, last)
        p = params(FLOAT16, (rows, size), 1, 1e-6)
        p.x, p.y, p.scale = x, y, scale
        launch(on_device, p)
        gpu.synchronize()
        got = decode(gpu.download(y + (rows - 1) * size * 2, size * 2), FLOAT16)
        assert units(got, norm(decode(last, FLOAT16), decode(weights, FLOAT16), 1e-6), FLOAT16) <= 3
        assert set(gpu.download(y + (rows // 2) * size * 2, size * 2)) <= {0, 0x80}
    finally:
        for pointer in (x, y, scale):
            gpu.free(pointer)


def test_wrong_params_are_refused_on_the_device(on_device, call):
    call.version += 1
    assert on_device.start(call) == 1
    assert "version" in on_device.kernels.text(1)
