"""Kernels of the GPU schedule run without a GPU: OpenCL on PoCL, WGSL on lavapipe.

A runner takes what TVM's code generator wrote for one kernel, hands it to the API's own compiler, and launches as many
blocks as the kernel's thread bindings say.
"""

import functools
import os
import re
import tempfile

import numpy as np
import pytest
import tvm
from tvm.ir import Var
from tvm.script import from_source
from tvm.script import ir as I
from tvm.script import tirx as T

from rmsnorm_deploy.tvm.schedules.registry import schedules_for
from rmsnorm_deploy.tvm.targets.resolve import resolve

WORD = {"f32": np.float32, "f16": np.float16}


def built(norm, target, schedule=None, text=None, schedules=None):
    """The kernel's function, and the module that TVM makes of it. ``text`` replaces the schedule's."""
    schedules = schedules or schedules_for(target)
    if text is None:
        function = schedules.kernel(norm, schedule or schedules.default(norm))
    else:
        function = from_source(text, {"T": T, "I": I})
    function = function.with_attr("global_symbol", "norm")
    # Common terms of the sizes would be worked out by the host's part of the kernel, which is not run here.
    worked_out = norm.columns or norm.outer_rank > 1 or norm.size is None
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": worked_out}):
        return function, tvm.tirx.build(tvm.IRModule({"norm": function}), target=target)


def source_of(norm, target, schedule=None):
    return built(norm, target, schedule)[1].imports[0].inspect_source()


class Integers:
    """What TVMScript calls ``T``, as far as the extents of threads need it, in Python's integers."""

    max, min, int64 = max, min, int

    @staticmethod
    def Div(a, b):
        return a // b


def launch_of(function, sizes):
    """Blocks and threads of a launch with the symbols in ``sizes``, by name of the thread axis."""
    bindings = re.findall(r'in T\.thread_binding\((.*), thread="([\w.]+)"\)', function.script())
    return {axis: eval(extent, {"T": Integers, **sizes}) for extent, axis in bindings}


def sizes_of(function, arrays):
    """The symbols' values, from the arrays that are the function's arguments."""
    sizes = {}
    for parameter, array in zip(function.params, arrays, strict=True):
        for dim, size in zip(parameter.shape, array.shape, strict=True):
            if isinstance(dim, Var):
                assert sizes.setdefault(dim.name, size) == size
            else:
                assert int(dim) == size
    return sizes


class Runner:
    """Calls kernels on NumPy arrays; subclasses know an API."""

    kind: str

    def __init__(self, schedules=None):
        self.made = {}
        self.ran = 0
        self.schedules = schedules or schedules_for(self.target)

    @functools.cached_property
    def target(self):
        return resolve(self.kind)

    def kernel(self, norm, schedule=None, text=None):
        key = (norm, schedule, text)
        if key not in self.made:
            function, module = built(norm, self.target, schedule, text, self.schedules)
            self.made[key] = (function, self.compiled(module.imports[0].inspect_source()))
        return self.made[key]

    def run(self, norm, arrays, schedule=None, text=None):
        """``arrays`` are all arguments, in order; the outputs among them are written."""
        function, compiled = self.kernel(norm, schedule, text)
        sizes = sizes_of(function, arrays)
        named = dict(zip((str(p.name).rstrip("_") for p in function.params), arrays, strict=True))
        self.launch(compiled, named, sizes, launch_of(function, sizes))
        self.ran += 1


class OpenCL(Runner):
    """On the first device of PoCL."""

    kind = "opencl"

    def __init__(self):
        super().__init__()
        cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed: it is in the extra 'dev'")
        try:
            platforms = [p for p in cl.get_platforms() if "Portable Computing Language" in p.name]
        except cl.LogicError:  # no platform at all
            platforms = []
        if not platforms:
            pytest.skip("there is no OpenCL for the CPU: on Debian, apt-get install pocl-opencl-icd")
        self.cl = cl
        self.device = platforms[0].get_devices()[0]
        self.context = cl.Context([self.device])
        self.queue = cl.CommandQueue(self.context)

    def compiled(self, source):
        program = self.cl.Program(self.context, source).build(cache_dir=False)
        (kernel,) = program.all_kernels()
        signature = re.search(r"__kernel void.*?\w+_kernel\(([^)]*)\)", source).group(1)
        return kernel, [(part.split()[-1], part.split()[-2]) for part in signature.split(",")]

    def launch(self, compiled, named, sizes, launch):
        cl = self.cl
        kernel, parameters = compiled
        buffers = {}
        for name, _ in parameters:
            if name.endswith("_ptr"):
                array = named[name.removesuffix("_ptr")]
                # an empty buffer is an error
                buffers[name] = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, max(array.nbytes, 4))
                if array.nbytes:
                    cl.enqueue_copy(self.queue, buffers[name], array)
        scalars = {"long": np.int64, "int": np.int32}
        for index, (name, dtype) in enumerate(parameters):
            kernel.set_arg(index, buffers[name] if name in buffers else scalars[dtype](sizes[name]))
        threads = launch["threadIdx.x"]
        cl.enqueue_nd_range_kernel(self.queue, kernel, (launch["blockIdx.x"] * threads,), (threads,))
        for name in ("Y", "S"):
            if name in named and named[name].nbytes:
                cl.enqueue_copy(self.queue, named[name], buffers[f"{name}_ptr"])
        self.queue.finish()


class WebGPU(Runner):
    """On lavapipe, Mesa's Vulkan for the CPU."""

    kind = "webgpu"

    def __init__(self):
        super().__init__()
        wgpu = pytest.importorskip("wgpu", reason="wgpu is not installed: it is in the extra 'dev'")
        if "XDG_RUNTIME_DIR" not in os.environ:  # Mesa wants a folder of the user's own
            os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="runtime-")
        found = [a for a in wgpu.gpu.enumerate_adapters_sync() if "llvmpipe" in a.info["device"]]
        if not found:
            pytest.skip("there is no Vulkan for the CPU: on Debian, apt-get install mesa-vulkan-drivers libvulkan1")
        self.wgpu = wgpu
        self.features = ["shader-f16"] if "shader-f16" in found[0].features else []
        self.device = found[0].request_device_sync(required_features=self.features)

    def compiled(self, source):
        module = self.device.create_shader_module(code=source)
        entry = re.search(r"fn (\w+)\(", source).group(1)
        pipeline = self.device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": entry})
        bound = re.findall(r"@binding\((\d+)\) var<storage, (\w+)> (\w+)_ptr : array<(\w+)>", source)
        members = re.search(r"struct PODArgs \{(.*?)\}", source, re.S).group(1)
        uniform = int(re.search(r"@binding\((\d+)\) var<uniform> podArgs", source).group(1))
        return pipeline, bound, re.findall(r"(\w+): (\w+)", members), uniform

    def launch(self, compiled, named, sizes, launch):
        pipeline, bound, members, uniform = compiled
        usage = self.wgpu.BufferUsage
        buffers, entries = {}, []

        def bind(index, buffer):
            entries.append({"binding": index, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}})

        for index, _, name, dtype in bound:
            array = named[name]
            assert array.dtype == WORD[dtype]
            padded = np.zeros(max(4, -(-array.nbytes // 4) * 4), np.uint8)
            padded[: array.nbytes] = array.reshape(-1).view(np.uint8)
            buffers[name] = self.device.create_buffer_with_data(data=padded, usage=usage.STORAGE | usage.COPY_SRC)
            bind(int(index), buffers[name])
        # TVM's runtime for the web folds a grid that is too wide into the third dimension; so does this.
        blocks = launch["blockIdx.x"]
        depth = -(-blocks // 65535)
        width = -(-blocks // depth)
        values = [blocks - 1 if name == "packGridDimX" else sizes[name] for name, _ in members]
        data = np.zeros(-(-len(values) // 4) * 4, np.int32)
        data[: len(values)] = values
        bind(uniform, self.device.create_buffer_with_data(data=data, usage=usage.UNIFORM))
        group = self.device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
        encoder = self.device.create_command_encoder()
        step = encoder.begin_compute_pass()
        step.set_pipeline(pipeline)
        step.set_bind_group(0, group)
        step.dispatch_workgroups(width, 1, depth)
        step.end()
        self.device.queue.submit([encoder.finish()])
        for name in ("Y", "S"):
            if name in named:
                array = named[name]
                result = np.frombuffer(self.device.queue.read_buffer(buffers[name]), np.uint8)[: array.nbytes]
                array[...] = result.view(array.dtype).reshape(array.shape)
