"""The kernels' C contract from Python: its struct, calls of it on NumPy arrays, and what their results have to be."""

import ctypes
import dataclasses
import inspect

import ml_dtypes
import numpy as np
from onnx import TensorProto

from benchmarks.gpu.contract import ALL, FLOATS, VERSION, Params
from rmsnorm_deploy.check import ulp as ulps
from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.op.reference import rms_norm

F32, F16, F64, BF16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16
DTYPES = {F32: np.float32, F16: np.float16, F64: np.float64, BF16: ml_dtypes.bfloat16}
BAD_VERSION, BAD_TYPE, BAD_SHAPE, BAD_POINTER, BAD_PARTIAL, BAD_VALUE, BAD_STRIDE, BAD_ISA = range(1, 9)
BAD_STREAMING = 10
WRONG = [
    ({"version": VERSION + 1}, BAD_VERSION),
    ({"x_type": 6}, BAD_TYPE),
    ({"scale_type": 0}, BAD_TYPE),
    ({"round_type": F64}, BAD_TYPE),
    ({"round_type": F16}, BAD_TYPE),
    ({"stash_type": F16}, BAD_TYPE),
    ({"rank": 0}, BAD_SHAPE),
    ({"rank": 17}, BAD_SHAPE),
    ({"axis_begin": 2}, BAD_SHAPE),
    ({"axis_begin": -1}, BAD_SHAPE),
    ({"axis_count": 0}, BAD_SHAPE),
    ({"axis_count": 2}, BAD_SHAPE),
    ({"x": None}, BAD_POINTER),
    ({"scale": None}, BAD_POINTER),
    ({"y": None}, BAD_POINTER),
    ({"residual": 64}, BAD_POINTER),
    ({"sum": 64}, BAD_POINTER),
    ({"partial_size": 0}, BAD_PARTIAL),
    ({"epsilon": -1.0}, BAD_VALUE),
    ({"epsilon": float("nan")}, BAD_VALUE),
    ({"epsilon_outside": float("inf")}, BAD_VALUE),
    ({"rms_floor": -1e-9}, BAD_VALUE),
]
"""Changes of a call's params, and what each is refused with."""


def load(path):
    """The functions of the contract in a file of this machine's architecture."""
    lib = ctypes.CDLL(str(path))
    lib.rmsnorm_deploy_cpu_run.argtypes = [ctypes.POINTER(Params)]
    lib.rmsnorm_deploy_cpu_isa.restype = ctypes.c_char_p
    lib.rmsnorm_deploy_error_text.restype = ctypes.c_char_p
    lib.rmsnorm_deploy_cpu_isa_at.restype = ctypes.c_char_p
    return lib


def instruction_sets(library):
    """Names of those that a library has kernels for, best first."""
    names = []
    while (name := library.rmsnorm_deploy_cpu_isa_at(len(names), None)) is not None:
        names.append(name.decode())
    return names


def strides(array, shape):
    """Element strides of ``array`` broadcast to ``shape``, as the contract wants them."""
    view = np.broadcast_to(array, shape)
    return [0 if n == 1 else s // array.itemsize for s, n in zip(view.strides, shape, strict=True)]


@dataclasses.dataclass
class Call:
    """One call of the contract on NumPy arrays."""

    x: np.ndarray
    scale: np.ndarray
    x_type: int = F32
    scale_type: int = F32
    round_type: int = F32
    stash_type: int = F32
    axes: tuple[int, ...] = (-1,)
    epsilon: float = 1e-6
    residual: np.ndarray | None = None
    bias: np.ndarray | None = None
    epsilon_outside: float = 0.0
    rms_floor: float = 0.0
    partial_size: int = ALL
    floats: dict[str, float] = dataclasses.field(default_factory=dict)  # the other float attributes, by name

    def __post_init__(self):
        self.scale = np.asarray(self.scale)  # NumPy makes scalars of arrays without dimensions
        self.bias = None if self.bias is None else np.asarray(self.bias)

    def _floats(self):
        named = {name: getattr(self, name) for name in ("epsilon", "epsilon_outside", "rms_floor")}
        return named | self.floats

    def params(self, y, total=None):
        rank = self.x.ndim
        p = Params(
            VERSION,
            self.x_type,
            self.scale_type,
            self.round_type,
            self.stash_type,
            rank,
            min(a % rank for a in self.axes),
            len(self.axes),
            self.x.ctypes.data,
            None if self.residual is None else self.residual.ctypes.data,
            self.scale.ctypes.data,
            None if self.bias is None else self.bias.ctypes.data,
            y.ctypes.data,
            None if total is None else total.ctypes.data,
            **FLOATS,
        )
        p.shape[:rank] = self.x.shape
        p.scale_strides[:rank] = strides(self.scale, self.x.shape)
        if self.bias is not None:
            p.bias_strides[:rank] = strides(self.bias, self.x.shape)
        p.partial_size = self.partial_size
        for name, value in self._floats().items():
            setattr(p, name, value)
        return p

    def run(self, library, y=None, total=None):
        y = np.empty_like(self.x) if y is None else y
        if total is None and self.residual is not None:
            total = np.empty_like(self.x)
        code = library.rmsnorm_deploy_cpu_run(ctypes.byref(self.params(y, total)))
        assert code == 0, library.rmsnorm_deploy_error_text(code)
        return y, total

    def expected(self, *, exact=True):
        return rms_norm(
            self.x,
            self.scale,
            axes=self.axes,
            stash_type=self.stash_type,
            scale_type=self.round_type,
            residual=self.residual,
            bias=self.bias,
            partial_size=None if self.partial_size == ALL else self.partial_size,
            exact=exact,
            **{name: float(np.float32(value)) for name, value in self._floats().items()},
        )


def ulp(value, data_type):
    """Distance to the next value of a type, for magnitudes."""
    return ulps.ulp(value, float_type(data_type))


def agrees(call, y, total):
    """Assert that a result is right: for rows, about one ULP of the row's largest; sums and roundings bit for bit."""
    wanted, wanted_sum = call.expected()
    if total is not None:
        np.testing.assert_array_equal(total, wanted_sum)
    got = y.astype(np.float64)
    axes = tuple(call.axes)
    largest = np.abs(wanted).max(axis=axes, keepdims=True)
    if call.bias is not None:  # what the bias is added to may be larger than the result
        unbiased, _ = dataclasses.replace(call, bias=None).expected()
        largest = np.maximum(largest, np.abs(unbiased).max(axis=axes, keepdims=True))
    error = np.abs(got - wanted)
    if call.x_type in (F16, BF16):
        rounded = wanted.astype(DTYPES[call.x_type]).astype(np.float64)
        off = np.abs(got - rounded)
        # A value that float32 arithmetic leaves on the other side of a tie moves by one step; that is rare. Two steps
        # can follow from one step before the scale, one more from the bias.
        assert (off > 0).mean() <= 0.01 + 2 / off.size
        steps = 1 if call.round_type == F32 else 3
        assert (off <= steps * ulp(np.maximum(largest, np.abs(rounded)), call.x_type) * (1 + 1e-9)).all()
        return
    kind = F32 if F32 in (call.x_type, call.round_type) else F64
    # The rounding of n is at most one ULP of the result, the last one half; the mean adds a little. The reference has
    # errors of its own in float64.
    units = 4.0 if kind == F64 else 1.8
    if call.bias is not None:
        units += 0.5
    excess = (error / ulp(largest, kind)).max(initial=0)
    assert excess <= units


def values(rng, shape, data_type, spread=1.0):
    return np.asarray(rng.standard_normal(shape) * spread).astype(DTYPES[data_type])


TYPE_PAIRS = [(F32, F32), (F16, F16), (BF16, BF16), (F64, F64), (F16, F32), (BF16, F32), (F64, F32)]


def round_types(x_type, stash_type):
    return sorted({x_type, F32} | ({F64} if stash_type == F64 else set()))


COMBINATIONS = [
    (op, x_type, scale_type, stash_type, round_type)
    for op in ("RMSNorm", "AddRMSNorm", "GeneralRMSNorm")
    for x_type, scale_type in TYPE_PAIRS
    for stash_type in ((F64,) if x_type == F64 else (F32, F64))
    for round_type in round_types(x_type, stash_type)
]
LAYOUTS = [  # shape of X, axes
    ((5, 96), (-1,)),
    ((2, 3, 37), (2,)),
    ((2, 3, 4, 10), (-2, -1)),
    ((3, 7), (0,)),
    ((3, 7), (0, 1)),
    ((2, 5, 3, 7), (1,)),
    ((2, 21, 5, 20), (-3,)),
    ((2, 3, 4, 35), (1, 2)),
]


def scale_shapes(shape, axes):
    """Every kind of broadcast: none, whole, per feature, per place before and behind the normalised dimensions."""
    rank = len(shape)
    begin = min(a % rank for a in axes)
    end = begin + len(axes)
    feature = shape[begin:end] + (1,) * (rank - end)
    found = [(), (1,), shape, feature, (1,) * begin + feature, shape[:begin] + (1,) * (rank - begin), shape[-1:]]
    if len(axes) > 1:
        found.append((1,) * (begin + 1) + shape[begin + 1 :])
    if begin > 1:
        found.append((1, *shape[1:begin], *feature))
    return sorted(set(found))


def cases(module):
    """The tests of a module that need a fixture `kernels`, by name: a test file runs them on kernels of its own."""
    found = {name: value for name, value in vars(module).items() if name.startswith("test_")}
    return {name: test for name, test in found.items() if "kernels" in inspect.signature(test).parameters}
