"""The kernels' C contract in another process, which may be of another architecture: `driver.cpp` runs there."""

import contextlib
import ctypes
import os
import select
import struct
import subprocess
from pathlib import Path

import numpy as np

from benchmarks.gpu.contract import Gate
from tests.support.contract import BAD_POINTER, DTYPES, Params

RUN, SET_ISA, ISA, ISA_AT, ERROR_TEXT, RUN_GATED = range(6)
TENSORS = ("x", "residual", "scale", "bias", "gate", "y", "sum")
INPUTS = TENSORS[:5]
ALIGNMENT = 16  # what NumPy's own memory has at least
TIMEOUT = 60  # seconds for one answer


def run(*command):
    """Run a compiler or build tool without this machine's options for others, and show what it said if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CXXFLAGS", "LDFLAGS")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def build(compiler, folder, name="driver", libraries=("-ldl",)):
    """The path of the program, compiled into ``folder``; ``compiler`` is the head of a command line."""
    program = folder / name
    source = Path(__file__).with_name("driver.cpp")
    run(*compiler, "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", source, "-o", program, *libraries)
    return program


def extent(params, gate, name):
    """How many bytes of a tensor a call may touch."""
    shape = params.shape[: params.rank]
    if 0 in shape:
        return 0
    data_type = {"scale": params.scale_type, "bias": params.scale_type}.get(name, params.x_type)
    if name == "gate":
        data_type = gate.type
    count = int(np.prod(shape))
    if name in ("scale", "bias"):
        count = 1 + sum(s * (n - 1) for s, n in zip(getattr(params, f"{name}_strides"), shape, strict=False))
    return count * np.dtype(DTYPES[data_type]).itemsize


class Driver:
    """Has the functions of the contract as a `ctypes` library of this process has them, so tests need not know.

    The process starts at the first call, and again after a crash. ``isa`` is what its environment asks for.
    """

    def __init__(self, command, isa=""):
        self.command = command
        self.environment = os.environ | {"RMSNORM_DEPLOY_ISA": isa}
        self.process = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.end()

    def end(self):
        """The exit status of the process, which ends where its input does."""
        process, self.process = self.process, None
        if process is None:
            return None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        return process.wait(timeout=60)

    def request(self, *parts):
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environment
            )
        try:
            for part in parts:
                self.process.stdin.write(part)
            self.process.stdin.flush()
        except BrokenPipeError:
            self.fail()

    def fail(self):
        raise AssertionError(f"the process that runs the kernels ended with status {self.end()}") from None

    def receive(self, size):
        data = bytearray()
        while len(data) < size:
            ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT)
            if not ready:
                self.process.kill()
            part = os.read(self.process.stdout.fileno(), size - len(data))
            if not part:
                self.fail()
            data += part
        return bytes(data)

    def number(self):
        return struct.unpack("<i", self.receive(4))[0]

    def text(self):
        length = self.number()
        return None if length < 0 else self.receive(length)

    def rmsnorm_deploy_cpu_run(self, reference):
        return self.run(reference._obj, Gate(), RUN)

    def rmsnorm_deploy_cpu_run_gated(self, reference, gate):
        if reference is None or gate is None:
            return BAD_POINTER  # this process cannot hand over nothing
        return self.run(reference._obj, gate._obj, RUN_GATED)

    def run(self, params, gate, command):
        assert isinstance(params, Params)
        seen, parts = {}, []
        addresses = {name: getattr(gate if name == "gate" else params, name) for name in TENSORS}
        sizes = {name: extent(params, gate, name) for name, address in addresses.items() if address is not None}
        header = [struct.pack("<i", command), bytes(params), bytes(gate)]
        for number, (name, address) in enumerate(addresses.items()):
            size = sizes.get(name, 0)
            same_as = -1 if address is None else seen.setdefault(address, number) if size else number
            header.append(struct.pack("<qii", size, same_as, (address or 0) % ALIGNMENT))
            if same_as == number and name in INPUTS:
                parts.append(ctypes.string_at(address, size))
        self.request(b"".join(header), *parts)
        code, damaged = self.number(), self.number()
        for name in ("y", "sum"):
            if code == 0 and name in sizes:
                ctypes.memmove(addresses[name], self.receive(sizes[name]), sizes[name])
        outside = [name for number, name in enumerate(TENSORS) if damaged >> number & 1]
        assert not outside, f"written where nothing may be written: in or around {outside}"
        return code

    def rmsnorm_deploy_cpu_set_isa(self, name):
        name = name or b""
        self.request(struct.pack("<ii", SET_ISA, len(name)), name)
        return self.number()

    def rmsnorm_deploy_cpu_isa(self):
        self.request(struct.pack("<i", ISA))
        return self.text()

    def rmsnorm_deploy_cpu_isa_at(self, index, usable):
        self.request(struct.pack("<ii", ISA_AT, index))
        usable._obj.value = self.number()
        return self.text()

    def rmsnorm_deploy_error_text(self, code):
        self.request(struct.pack("<ii", ERROR_TEXT, code))
        return self.text()
