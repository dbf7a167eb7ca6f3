"""Who else computes an RMSNorm on a GPU, as far as it is installed: each makes a call that runs on given memory."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.driver import Gpu

Run = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Buffers:
    """Device addresses of one call; residual and sum of AddRMSNorm only."""

    x: int
    residual: int | None
    scale: int
    y: int
    sum: int | None


class Memory:
    """Device memory that PyTorch reads through its array interface."""

    def __init__(self, pointer: int, count: int) -> None:
        # bfloat16 has no name in that interface, so everything is handed over as bytes.
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (pointer, False), "version": 3}


class Torch:
    """What the peers need from PyTorch: tensors over our memory, its stream, its way to capture."""

    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")
        if not self.torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no GPU")
        self.torch.set_grad_enabled(False)
        self.stream = self.torch.cuda.Stream()
        self.torch.cuda.set_stream(self.stream)

    def tensor(self, pointer: int, shape: tuple[int, ...], dtype: str) -> Any:
        kind = getattr(self.torch, dtype)
        count = kind.itemsize
        for n in shape:
            count *= n
        return self.torch.as_tensor(Memory(pointer, count), device="cuda").view(kind).view(shape)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        graph = self.torch.cuda.CUDAGraph()
        self.torch.cuda.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")  # the stream of __init__ is the current one
        try:
            work()
        finally:
            graph.capture_end()
        return graph.replay

    def release(self) -> None:
        """Hand back what no graph and no result needs any more."""
        self.torch.cuda.empty_cache()


class Peer:
    """One implementation. ``prepare`` is called for each case; the results of a case stay alive until ``forget``.

    Results that a peer allocates itself are all kept: if their memory was used again, its writes would stay in L2.
    """

    name = ""
    package = ""
    capturable = True
    compiles = False  # when it is first called, into a cache on disk
    ops: tuple[str, ...] = ("RMSNorm", "AddRMSNorm")
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32")

    def __init__(self, torch: Torch) -> None:
        self.t = torch
        self.kept: list[Any] = []
        self.load()

    @property
    def label(self) -> str:
        return f"{self.name} ({self.package} {importlib.metadata.version(self.package)})"

    def load(self) -> None:
        """Import what is needed; an exception says that the peer is not there."""

    def takes(self, op: str, dtype: str) -> bool:
        return op in self.ops and dtype in self.dtypes

    def must_compile(self, op: str, dtype: str, shape: tuple[int, int]) -> bool:
        """Whether this case needs seconds before its first call, so that it takes part in the telling ones only."""
        return False

    def function(self, op: str, epsilon: float) -> Callable[..., Any]:
        """What computes ``(x, scale)`` or ``(x, residual, scale)``; returns y, or (y, sum)."""
        raise NotImplementedError

    def prepare(self, op: str, dtype: str, shape: tuple[int, int], epsilon: float, buffers: list[Buffers]) -> Run:
        call = self.function(op, epsilon)
        calls = []
        for b in buffers:
            tensors = [self.t.tensor(b.x, shape, dtype)]
            if b.residual:
                tensors.append(self.t.tensor(b.residual, shape, dtype))
            calls.append([*tensors, self.t.tensor(b.scale, shape[1:], dtype)])
        self.kept = [None] * len(calls)

        def run(index: int) -> None:
            self.kept[index] = call(*calls[index])

        return run

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return self.t.capture(work)

    def result(self, row: int, size: int) -> bytes:
        """One row of the first result of ``prepare``'s call 0, as stored."""
        y = self.kept[0][0] if isinstance(self.kept[0], tuple) else self.kept[0]
        raw = y[row].contiguous().view(self.t.torch.uint8).cpu().numpy().tobytes()
        assert len(raw) == size
        return raw

    def forget(self) -> None:
        self.kept = []


class Eager(Peer):
    name, package = "torch eager", "torch"

    def load(self) -> None:
        self.norm = self.t.torch.nn.functional.rms_norm

    def function(self, op: str, epsilon: float) -> Callable[..., Any]:
        norm = self.norm

        def plain(x: Any, scale: Any) -> Any:
            return norm(x, x.shape[-1:], scale, epsilon)

        def add(x: Any, residual: Any, scale: Any) -> Any:
            total = x + residual
            return norm(total, total.shape[-1:], scale, epsilon), total

        return plain if op == "RMSNorm" else add


class Compiled(Eager):
    name = "torch.compile"
    compiles = True

    def __init__(self, torch: Torch) -> None:
        self.made: dict[tuple[str, str, tuple[int, int]], Callable[..., Any]] = {}
        super().__init__(torch)

    def load(self) -> None:
        super().load()
        importlib.import_module("triton")
        limits = self.t.torch._dynamo.config
        for limit in ("cache_size_limit", "recompile_limit", "accumulated_cache_size_limit"):
            if hasattr(limits, limit):  # all row lengths are made from one function, which is compiled for each
                setattr(limits, limit, 10_000)

    def must_compile(self, op: str, dtype: str, shape: tuple[int, int]) -> bool:
        return (op, dtype, shape) not in self.made

    def prepare(self, op: str, dtype: str, shape: tuple[int, int], epsilon: float, buffers: list[Buffers]) -> Run:
        """Compiled for exactly this shape: with a number of rows left open it is tuned for another one."""
        key = op, dtype, shape
        if key not in self.made:
            self.made[key] = self.t.torch.compile(super().function(op, epsilon), dynamic=False)
        self.compiled = self.made[key]
        return super().prepare(op, dtype, shape, epsilon, buffers)

    def function(self, op: str, epsilon: float) -> Callable[..., Any]:
        return self.compiled


class Triton(Peer):
    name, package = "Triton", "triton"
    compiles = True

    def load(self) -> None:
        self.module = importlib.import_module("benchmarks.gpu.triton_norm")

    def prepare(self, op: str, dtype: str, shape: tuple[int, int], epsilon: float, buffers: list[Buffers]) -> Run:
        calls = []
        for b in buffers:
            inputs = [self.t.tensor(b.x, shape, dtype)]
            outputs = [self.t.tensor(b.y, shape, dtype)]
            if b.residual and b.sum:
                inputs.append(self.t.tensor(b.residual, shape, dtype))
                outputs.append(self.t.tensor(b.sum, shape, dtype))
            calls.append((inputs, self.t.tensor(b.scale, shape[1:], dtype), outputs))
        self.kept = [tuple(outputs) for *_, outputs in calls]

        def run(index: int) -> None:
            self.module.rms_norm(*calls[index], epsilon)

        return run


class FlashInfer(Peer):
    name, package = "FlashInfer", "flashinfer-python"
    compiles = True
    dtypes = ("float16", "bfloat16")
    ops = ("RMSNorm",)  # its fused form works in place, so that repeating it measures other values

    def load(self) -> None:
        self.norm = importlib.import_module("flashinfer.norm").rmsnorm

    def function(self, op: str, epsilon: float) -> Callable[..., Any]:
        return lambda x, scale: self.norm(x, scale, epsilon)


class Liger(Peer):
    name, package = "Liger", "liger-kernel"
    compiles = True

    def load(self) -> None:
        self.norm = importlib.import_module("liger_kernel.ops.rms_norm").LigerRMSNormFunction.apply
        try:
            fused = importlib.import_module("liger_kernel.ops.fused_add_rms_norm")
            self.fused = fused.LigerFusedAddRMSNormFunction.apply
        except (ImportError, AttributeError):  # older releases have the plain norm only
            self.ops = ("RMSNorm",)

    def function(self, op: str, epsilon: float) -> Callable[..., Any]:
        if op == "RMSNorm":
            return lambda x, scale: self.norm(x, scale, epsilon)
        return lambda x, residual, scale: self.fused(x, residual, scale, epsilon)


class Quack(Peer):
    name, package = "quack", "quack-kernels"
    compiles = True
    ops = ("RMSNorm",)

    def must_compile(self, op: str, dtype: str, shape: tuple[int, int]) -> bool:
        return (dtype, shape[1]) not in self.made  # for any number of rows, and for this process only

    def prepare(self, op: str, dtype: str, shape: tuple[int, int], epsilon: float, buffers: list[Buffers]) -> Run:
        self.made.add((dtype, shape[1]))
        return super().prepare(op, dtype, shape, epsilon, buffers)

    def load(self) -> None:
        self.made: set[tuple[str, int]] = set()
        self.norm = importlib.import_module("quack.rmsnorm").rmsnorm

    def function(self, op: str, epsilon: float) -> Callable[..., Any]:
        return lambda x, scale: self.norm(x, scale, eps=epsilon)


class OnnxRuntime(Peer):
    """onnxruntime's own fused operators on its CUDA provider; the time is that of a session's run, of one node."""

    name, package = "onnxruntime", "onnxruntime-gpu"
    capturable = False
    dtypes = ("float16", "float32")

    def load(self) -> None:
        self.ort = importlib.import_module("onnxruntime")
        self.onnx = importlib.import_module("onnx")
        if "CUDAExecutionProvider" not in self.ort.get_available_providers():
            raise ImportError("this onnxruntime has no CUDA provider")

    def prepare(self, op: str, dtype: str, shape: tuple[int, int], epsilon: float, buffers: list[Buffers]) -> Run:
        helper, kind = self.onnx.helper, getattr(self.onnx.TensorProto, {"float32": "FLOAT"}.get(dtype, dtype.upper()))
        if op == "RMSNorm":
            inputs, outputs = ["x", "scale"], ["y"]
            node = helper.make_node("SimplifiedLayerNormalization", inputs, outputs, epsilon=epsilon, axis=-1)
        else:
            inputs, outputs = ["x", "residual", "scale"], ["y", "sum"]
            made = ["y", "", "", "sum"]
            node = helper.make_node(
                "SkipSimplifiedLayerNormalization", inputs, made, epsilon=epsilon, domain="com.microsoft"
            )
        shapes = {name: shape[1:] if name == "scale" else shape for name in inputs + outputs}
        graph = helper.make_graph(
            [node],
            "norm",
            [helper.make_tensor_value_info(name, kind, shapes[name]) for name in inputs],
            [helper.make_tensor_value_info(name, kind, shapes[name]) for name in outputs],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        provider = ("CUDAExecutionProvider", {"user_compute_stream": str(self.t.stream.cuda_stream)})
        session = self.ort.InferenceSession(model.SerializeToString(), providers=[provider])
        element = getattr(importlib.import_module("numpy"), dtype)
        bindings = []
        for b in buffers:
            binding = session.io_binding()
            for name in inputs:
                binding.bind_input(name, "cuda", 0, element, shapes[name], getattr(b, name))
            for name in outputs:
                binding.bind_output(name, "cuda", 0, element, shapes[name], getattr(b, name))
            bindings.append(binding)
        self.kept = [(self.t.tensor(buffers[0].y, shape, dtype),)]
        # Without this it would wait for the device after every run.
        options = self.ort.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")

        def run(index: int) -> None:
            session.run_with_iobinding(bindings[index], options)

        return run


KNOWN: tuple[type[Peer], ...] = (Eager, Compiled, Triton, FlashInfer, Liger, Quack, OnnxRuntime)


def peers(gpu: Gpu) -> tuple[list[Peer], int, list[str]]:
    """Those that are installed, the stream on which everyone runs, and a sentence for each that is not there."""
    try:
        torch = Torch()
    except Exception as error:  # ImportError; or what a broken installation raises
        return [], gpu.stream(), [f"PyTorch and all that needs it: {str(error).splitlines()[0]}"]
    found, lacking = [], []
    for kind in KNOWN:
        try:
            peer = kind(torch)
            assert peer.label
            found.append(peer)
        except Exception as error:  # not installed, or not for this GPU
            lacking.append(f"{kind.name}: {(str(error).splitlines() or [type(error).__name__])[0]}")
    return found, torch.stream.cuda_stream, lacking
