"""What is passed to a compiled model as the tensors that it takes, or an error that says what does not fit."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.tvm.artefact import arrays


class Feeds:
    """The inputs of a compiled model.

    Args:
        inputs: their names, types and shapes, as ``model.json`` has them.
        not_empty: names of dimensions that must not be 0.
        device: where the model computes.
    """

    def __init__(self, inputs: Sequence[Mapping[str, Any]], not_empty: Collection[str], device: Any) -> None:
        self._inputs = [_Input(i, not_empty) for i in inputs]
        self._names = frozenset(i.name for i in self._inputs)
        # itemgetter of one name gives no tuple
        self._all = operator.itemgetter(*(i.name for i in self._inputs)) if len(self._inputs) > 1 else None
        self._plain = [i.dtype if i.dtype.kind != "V" else None for i in self._inputs]
        self._fitted: list[tuple[int, ...]] | None = None
        self._device = device
        self._kind = device.dlpack_device_type()
        self._on_cpu = self._kind == tvm.cpu().dlpack_device_type()

    def tensors(self, feeds: Mapping[str, Any]) -> Sequence[Any]:
        """A tensor on the model's device for each input, in order; on that device already, it is taken in place.

        On a CPU it may be one of NumPy's, of the right type and as a kernel reads it.

        Raises:
            UsageError: an input is missing, unknown, or of another type or shape.
        """
        values = self._as_they_are(feeds)
        if values is not None:
            shapes = [v.shape for v in values]
            if shapes == self._fitted:
                return values  # TVM makes tensors of them, in place, in a third of the time that it takes from here
        tensors = self._checked(feeds)
        if values is not None and not any(0 in shape for shape in shapes):
            self._fitted = shapes  # the next call, with the same shapes most likely, need not ask again
        return tensors

    def _as_they_are(self, feeds: Mapping[str, Any]) -> tuple[arrays.Array, ...] | None:
        """The arrays, where each is one of NumPy's, of its input's type, that TVM can read where it is; else None."""
        if self._all is None or not self._on_cpu or len(feeds) != len(self._inputs):
            return None
        try:
            values: tuple[arrays.Array, ...] = self._all(feeds)
        except KeyError:
            return None
        for value, dtype in zip(values, self._plain, strict=True):
            # another object may be the same type: that takes the longer way
            if type(value) is not np.ndarray or value.dtype is not dtype or not arrays.is_plain(value):
                return None
        return values

    def _checked(self, feeds: Mapping[str, Any]) -> list[Any]:
        if not self._names.issuperset(feeds):
            unknown = min((name for name in feeds if name not in self._names), key=str)
            known = f"It has: {', '.join(i.name for i in self._inputs)}." if self._inputs else "It has none."
            raise UsageError(f"the model has no input '{unknown}'", known)
        sizes: dict[str, int] = {}
        return [self._tensor(i, feeds, sizes) for i in self._inputs]

    def _tensor(self, wanted: _Input, feeds: Mapping[str, Any], sizes: dict[str, int]) -> Any:
        try:
            value = feeds[wanted.name]
        except KeyError:
            raise UsageError(
                f"input '{wanted.name}' is missing", f"Its type is {wanted.type}, its shape {wanted.shape}."
            ) from None
        if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
            value = np.asarray(value)
            # == between types of another byte order is False, and such arrays are only copied
            if value.dtype != wanted.dtype and value.dtype.newbyteorder("=") != wanted.dtype:
                raise _wrong_type(wanted, str(value.dtype))
            wanted.require_shape(value.shape, sizes)
            tensor = arrays.tensor_on_cpu(value)
            return tensor if self._on_cpu else tensor.copyto(self._device)
        if not isinstance(value, tvm.runtime.Tensor):
            try:
                value = arrays.exported(value)
            except ValueError as error:
                raise UsageError(
                    f"input '{wanted.name}' cannot be taken through DLPack: {error}", "Pass a NumPy array."
                ) from error
        if value.dtype != wanted.of_tvm:
            raise _wrong_type(wanted, str(value.dtype))
        wanted.require_shape(value.shape, sizes)
        return self._here(wanted, value)

    def _here(self, wanted: _Input, tensor: Any) -> Any:
        """``tensor``, from wherever it is, as a whole on the model's device."""
        kind = tensor.device.dlpack_device_type()
        if self._on_cpu and kind == self._kind:
            fits = tensor.is_contiguous() and tensor.data_ptr() % wanted.dtype.itemsize == 0
            return tensor if fits and 0 not in tensor.shape else arrays.compacted(tensor)
        if not tensor.is_contiguous():
            raise UsageError(f"input '{wanted.name}' has gaps between its rows", "Pass a contiguous tensor.")
        if tensor.device == self._device and tensor.data_ptr() % arrays.WIDEST == 0:
            return tensor
        try:
            return tensor.copyto(self._device)
        except RuntimeError as error:
            raise UsageError(
                f"input '{wanted.name}' is on {tensor.device}, from where TVM cannot copy to {self._device}",
                "Move it to the CPU first.",
            ) from error


class _Input:
    def __init__(self, said: Mapping[str, Any], not_empty: Collection[str]) -> None:
        self.name, self.type, self.shape = said["name"], said["type"], said["shape"]
        self.dtype, self.of_tvm = arrays.numpy_dtype(self.type), tvm_ffi.dtype(self.type)
        dims = list(enumerate(self.shape or ()))
        self.rank = None if self.shape is None else len(self.shape)
        self.fixed = [(i, dim) for i, dim in dims if isinstance(dim, int)]
        self.named = [(i, dim) for i, dim in dims if not isinstance(dim, int) and dim != "?"]
        labels = [(i, f"{self.name}[{i}]" if dim == "?" else dim) for i, dim in dims]
        self.not_empty = [(i, label) for i, label in labels if label in not_empty]

    def require_shape(self, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
        """Refuse a shape that the input cannot have, where ``sizes`` are those of names met before.

        Raises:
            UsageError: it is such a shape.
        """
        if self.rank is None:
            return
        fits = len(shape) == self.rank
        if fits:
            for i, size in self.fixed:
                fits = fits and shape[i] == size
            for i, name in self.named:
                fits = fits and sizes.setdefault(name, shape[i]) == shape[i]
        if not fits:
            raise UsageError(
                f"input '{self.name}' has shape {list(shape)}, not {self.shape}", "Equal names are equal sizes."
            )
        for i, label in self.not_empty:
            if shape[i] == 0:
                raise UsageError(
                    f"dimension '{label}' of input '{self.name}' is 0", "This model needs at least one of it."
                )


def _wrong_type(wanted: _Input, found: str) -> UsageError:
    return UsageError(f"input '{wanted.name}' is {found}, not {wanted.type}", "Convert it before the call.")
