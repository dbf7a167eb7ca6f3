"""What version 2 of the kernels' contract added, from Python: quantised outputs, extremes of rows, strides."""

import ctypes
import dataclasses

import ml_dtypes
import numpy as np
from onnx import TensorProto

from benchmarks.gpu.contract import ROW_TENSORS
from tests.support.contract import BF16, DTYPES, F16, F32, Call

UINT8, INT8, FLOAT8 = TensorProto.UINT8, TensorProto.INT8, TensorProto.FLOAT8E4M3FN
QUANTISED = {UINT8: np.uint8, INT8: np.int8, FLOAT8: ml_dtypes.float8_e4m3fn}


def quantise_linear(y, scale, zero_point, quantised_type, quotient_type=F32):
    """QuantizeLinear as ONNX defines it; scale and zero point broadcast to ``y``."""
    with np.errstate(all="ignore"):
        quotient = y.astype(np.float32) / np.asarray(scale).astype(np.float32)
        quotient = quotient.astype(DTYPES[quotient_type]).astype(np.float32)
        if quantised_type == FLOAT8:
            return np.clip(quotient, -448, 448).astype(QUANTISED[FLOAT8])
        limits = np.iinfo(QUANTISED[quantised_type])
        whole = np.rint(quotient.astype(np.float64)) + np.asarray(zero_point).astype(np.float64)
        whole = np.where(np.isnan(whole), limits.min, np.clip(whole, limits.min, limits.max))
        return whole.astype(QUANTISED[quantised_type])


@dataclasses.dataclass
class Outputs:
    """A call with outputs of version 2. Tensors may be views of larger ones, rows of which are contiguous."""

    call: Call
    y_type: int = 0
    quantised_type: int = 0
    scale: np.ndarray | None = None  # of the quantised values: one, or one a row
    scale_type: int = F32
    zero_point: np.ndarray | None = None
    quotient_type: int = 0

    def dtype(self):
        return DTYPES[self.y_type or self.call.x_type]

    def params(self, y=None, total=None, quantised=None, least=None, most=None, strided=()):
        """The struct; ``strided`` names the tensors whose own strides are told."""
        x = self.call.x
        p = self.call.params(x, total)
        p.y = None if y is None else y.ctypes.data
        p.y_type, p.quantised_type = self.y_type, self.quantised_type
        p.quantised_scale_type, p.quotient_type = self.scale_type, self.quotient_type
        if self.quantised_type:
            p.quantised = None if quantised is None else quantised.ctypes.data
            p.quantised_scale = self.scale.ctypes.data
            p.quantised_by_row = int(self.scale.size > 1)
            p.zero_point = None if self.zero_point is None else self.zero_point.ctypes.data
        p.least = None if least is None else least.ctypes.data
        p.most = None if most is None else most.ctypes.data
        arrays = dict(zip(ROW_TENSORS, (x, self.call.residual, y, total, quantised), strict=True))
        for bit, name in enumerate(ROW_TENSORS):
            if name in strided:
                array = arrays[name]
                p.strided |= 1 << bit
                getattr(p, f"{name}_strides")[: x.ndim] = [s // array.itemsize for s in array.strides]
        return p

    def code(self, library, **tensors):
        return library.rmsnorm_deploy_cpu_run(ctypes.byref(self.params(**tensors)))

    def run(self, library, **tensors):
        code = self.code(library, **tensors)
        assert code == 0, library.rmsnorm_deploy_error_text(code)

    def pair(self, library):
        """What the norm alone, of contiguous tensors, gives: y rounded to its type, sum, quantised y."""
        contiguous = {
            name: None if (array := getattr(self.call, name)) is None else np.ascontiguousarray(array)
            for name in ("x", "residual")
        }
        y, total = dataclasses.replace(self.call, **contiguous).run(library)
        with np.errstate(over="ignore"):
            y = y.astype(self.dtype())
        if not self.quantised_type:
            return y, total, None
        column = (*y.shape[:-1], 1)
        scale = self.scale.reshape(column if self.scale.size > 1 else ())
        zero = 0 if self.zero_point is None else self.zero_point.reshape(column if self.scale.size > 1 else ())
        return y, total, quantise_linear(y, scale, zero, self.quantised_type, self.quotient_type or F32)


__all__ = ["BF16", "F16", "F32", "FLOAT8", "INT8", "QUANTISED", "UINT8", "Outputs", "quantise_linear"]
