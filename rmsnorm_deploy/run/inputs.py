"""Inputs for running a model: deterministic, small, valid for the declared types and shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.model.dims import evaluated, names_in
from rmsnorm_deploy.run.decoder import Decoder, decoder_of

Array = NDArray[Any]
Feeds = dict[str, Array]

SYMBOLIC_SIZES = {"batch": 1, "past": 0, "seq": 8, "length": 8, "token": 8, "height": 32, "width": 32, "channel": 3}
"""Sizes of symbolic dimensions, by the first of these words that the name contains; any other gets OTHER_SIZE."""
OTHER_SIZE = 4

MOST_ELEMENTS = 2**26
"""Of all made inputs together whose shapes nobody asked for: a declared size of 2^40 must not take all memory."""

ROW_FACTORS = (1.0, 2.0**-10, 0.0, 2.0**-7, 2.0**8)
"""From far below the square root of epsilon to where float16 squares overflow."""


def graph_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """The inputs that have to be fed: those that no initializer gives a value."""
    initialised = {t.name for t in model.graph.initializer}
    return [v for v in model.graph.input if v.name not in initialised]


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``["x:1,8,64"]`` as ``{"x": (1, 8, 64)}``.

    Raises:
        UsageError: a text is not of this form.
    """
    shapes = {}
    for text in texts:
        name, colon, dims = text.rpartition(":")
        try:
            shapes[name] = tuple(int(d) for d in dims.split(",") if d.strip())
        except ValueError:
            colon = ""
        if not colon or not name or any(d < 0 for d in shapes[name]):
            raise UsageError(f"'{text}' is not a shape", "Write it as name:1,8,64.")
    return shapes


def make_inputs(model: ModelProto, shapes: Mapping[str, Sequence[int]] | None = None, seed: int = 0) -> Feeds:
    """Deterministic inputs: normal floats, small integers, ones for masks, 0, 1, 2, ... for positions.

    A decoder's caches, mask, positions and tokens get sizes that agree, whatever its dimensions are called; positions
    then start behind the past.

    Args:
        model: its graph's inputs are filled.
        shapes: shapes of some inputs by name; their symbolic dimensions then hold for the other inputs as well.
        seed: of the random generator.

    Raises:
        UsageError: an input is not a tensor, has no declared rank, or a shape given contradicts the declared one; or a
            dimension that is calculated from others would be negative; or declared sizes need more than
            :data:`MOST_ELEMENTS` elements.
    """
    rng = np.random.default_rng(seed)
    values = graph_inputs(model)
    given = {k: tuple(v) for k, v in (shapes or {}).items()}
    unknown = sorted(set(given) - {v.name for v in values})
    if unknown:
        raise UsageError(
            f"the model has no input '{unknown[0]}'", f"Its inputs are: {', '.join(v.name for v in values)}."
        )
    sizes: dict[str, int] = {}
    for value in values:
        if value.name in given:
            _bind(value, given[value.name], sizes)
    past = 0
    if decoder := decoder_of(model, values):
        past = _relate(decoder, sizes)
    declared = frozenset(d.dim_param for v in values for d in v.type.tensor_type.shape.dim if d.dim_param)
    feeds = {}
    left = MOST_ELEMENTS
    for value in values:
        if not value.type.HasField("tensor_type"):
            raise UsageError(f"input '{value.name}' is not a tensor", "Run the model on your own inputs instead.")
        shape = given.get(value.name) or _shape(value, sizes, declared)
        left -= 0 if value.name in given else math.prod(shape)
        if left < 0 or any(size < 0 for size in shape):
            raise UsageError(
                f"no input '{value.name}' of the shape {list(shape)} can be made up (at most {MOST_ELEMENTS} elements)",
                "Give its shape: --shapes name:1,8,64; or your own inputs.",
            )
        if not _is_a_type(value.type.tensor_type.elem_type):
            raise UsageError(f"input '{value.name}' states no element type", "Export the model again.")
        feeds[value.name] = _fill(value.name, value.type.tensor_type.elem_type, shape, rng, past)
    return feeds


def adversarial_inputs(model: ModelProto, feeds: Feeds, seed: int = 0) -> Feeds:
    """The same inputs with rows from 2^-10 to 2^8 times their size, and zero rows.

    A misplaced epsilon shows only in small rows, an overflow only in large ones. Where no input is a float, other
    integers.

    Args:
        model: as for ``feeds``.
        feeds: from :func:`make_inputs` or the user.
        seed: for the other integers.
    """
    if not any(is_float(v) for v in feeds.values()):
        return make_inputs(model, {k: v.shape for k, v in feeds.items()}, seed + 1)
    out = {}
    for name, value in feeds.items():
        if is_float(value) and value.ndim >= 2 and "mask" not in name.lower():
            rows = value.shape[-2]
            factors = np.resize(np.array(ROW_FACTORS if rows > 1 else ROW_FACTORS[1:2]), rows)[:, None]
            value = (value.astype(np.float64) * factors).astype(value.dtype)
        elif is_float(value) and value.ndim == 1 and "mask" not in name.lower():
            value = (value.astype(np.float64) * 2.0**-7).astype(value.dtype)
        out[name] = value
    return out


def load_inputs(path: str | Path, model: ModelProto) -> Feeds:
    """The arrays of an ``.npz`` file, as the inputs of ``model``.

    Raises:
        UsageError: the file cannot be read, or lacks an input, or an array does not fit the declared type.
    """
    try:
        # opened here: NumPy leaves the file of a damaged archive open
        with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {k: file[k] for k in file.files}
    except Exception as error:  # a damaged archive raises whatever zipfile and zlib have
        raise UsageError(
            f"{path} is not a readable .npz file", "Write it with numpy.savez(path, name=array)."
        ) from error
    return fit_inputs(arrays, model)


def write_inputs(path: Path, feeds: Feeds) -> None:
    """Write ``feeds`` to an ``.npz`` file that :func:`load_inputs` reads; bfloat16 as float32, which holds it exactly.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            arrays: dict[str, Any] = {
                k: v.astype(np.float32) if v.dtype.name == "bfloat16" else v for k, v in feeds.items()
            }
            np.savez(file, **arrays)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Name a folder that can be written.") from error


def fit_inputs(arrays: Mapping[str, Array], model: ModelProto) -> Feeds:
    """``arrays`` for exactly the inputs of ``model``, floats cast to the declared float type.

    Raises:
        UsageError: an input is missing, or there is one too many, or a type does not fit.
    """
    values = graph_inputs(model)
    optional = {v.name: v for v in model.graph.input}
    missing = [v.name for v in values if v.name not in arrays]
    extra = sorted(set(arrays) - set(optional))
    if missing or extra:
        names = ", ".join(v.name for v in values)
        what = f"no array for input '{missing[0]}'" if missing else f"an array '{extra[0]}' that is not an input"
        raise UsageError(f"there is {what}", f"The model's inputs are: {names}.")
    feeds = {}
    for name, array in arrays.items():
        dtype = _numpy_type(optional[name].type.tensor_type.elem_type)
        array = np.asarray(array)
        if array.dtype != dtype and not (is_float(array) and is_float(np.empty(0, dtype))):
            raise UsageError(f"input '{name}' is {array.dtype}, and the model takes {dtype}", "Cast the array first.")
        feeds[name] = array.astype(dtype)
    return feeds


def is_float(array: Array) -> bool:
    """Whether the elements are floats, bfloat16 (which NumPy does not know as such) included."""
    return bool(np.issubdtype(array.dtype, np.floating)) or array.dtype.name == "bfloat16"


def _numpy_type(data_type: int) -> np.dtype[Any]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(data_type))


def _is_a_type(data_type: int) -> bool:
    try:
        return _numpy_type(data_type) is not None
    except (KeyError, ValueError, TypeError):
        return False


def _bind(value: ValueInfoProto, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Note the symbolic sizes that a given shape implies."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return
    dims = tensor.shape.dim
    declared = [d.dim_param or (d.dim_value if d.HasField("dim_value") else "?") for d in dims]
    if len(dims) != len(shape) or any(
        d.HasField("dim_value") and d.dim_value != n for d, n in zip(dims, shape, strict=False)
    ):
        raise UsageError(
            f"the shape {list(shape)} does not fit input '{value.name}'",
            f"It is declared as [{', '.join(map(str, declared))}].",
        )
    for dim, size in zip(dims, shape, strict=True):
        if dim.dim_param and sizes.setdefault(dim.dim_param, size) != size:
            raise UsageError(
                f"the shapes give '{dim.dim_param}' two sizes, {sizes[dim.dim_param]} and {size}", "Give it one."
            )


def _shape(value: ValueInfoProto, sizes: dict[str, int], declared: frozenset[str]) -> tuple[int, ...]:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise UsageError(f"input '{value.name}' has no declared rank", f"Give its shape: --shapes {value.name}:1,8.")
    return tuple(
        d.dim_value if d.HasField("dim_value") else _symbolic(d.dim_param, sizes, declared) for d in tensor.shape.dim
    )


def _relate(decoder: Decoder, sizes: dict[str, int]) -> int:
    """Give the decoder's unrelated dimensions sizes that agree, and say how long the past is."""
    none: frozenset[str] = frozenset()
    batch = next((sizes[n] for n in decoder.batch if n in sizes), None)
    if batch is None:
        batch = min((_symbolic(n, {}, none) for n in decoder.batch), default=1)
    past = next((sizes[n] for n in decoder.past if n in sizes), None)
    if past is None:
        past = min(_symbolic(n, {}, none) for n in decoder.past)
    total = next((sizes[n] for n in decoder.total if n in sizes), None)
    new = next((sizes[n] for n in decoder.new if n in sizes), None)
    if new is None:
        default = min((_symbolic(n, {}, none) for n in decoder.new), default=1)
        new = default if total is None or total <= past else total - past
    for names, size in ((decoder.batch, batch), (decoder.past, past), (decoder.new, new), (decoder.total, past + new)):
        for name in names:
            sizes.setdefault(name, size)
    return past


def _symbolic(name: str, sizes: dict[str, int], declared: frozenset[str]) -> int:
    """The size of a symbolic dimension; exporters also write arithmetic such as "past_len + seq_len" or "2*seq"."""
    if name in sizes:
        return sizes[name]
    terms = names_in(name)
    # "seq-len" and "a/b" are names as well, unless their parts are dimensions; a plus is never part of a name
    if terms is not None and (terms <= declared or "+" in name):
        try:
            sizes[name] = size = int(evaluated(name, lambda term: _symbolic(term, sizes, declared)))
        except (ValueError, ZeroDivisionError):
            pass
        else:
            if not 0 <= size < 2**31:
                raise UsageError(
                    f"the dimension '{name}' would be {size if abs(size) < 2**63 else 'too large'}",
                    "Give the shapes: --shapes name:1,8,64.",
                )
            return size
    default = next((size for word, size in SYMBOLIC_SIZES.items() if word in name.lower()), OTHER_SIZE)
    return sizes.setdefault(name, default) if name else default


def _fill(name: str, data_type: int, shape: tuple[int, ...], rng: np.random.Generator, past: int) -> Array:
    dtype, word = _numpy_type(data_type), name.lower()
    if data_type == TensorProto.BOOL or "mask" in word:
        return np.ones(shape, dtype)
    if data_type == TensorProto.STRING:
        return np.full(shape, "a", dtype)
    if np.issubdtype(dtype, np.integer):
        if "position" in word and shape:
            return np.broadcast_to(past + np.arange(shape[-1], dtype=dtype), shape).copy()
        return rng.integers(0, 8, shape).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def element_type(value: onnx.ValueInfoProto) -> int:
    """The element type of a tensor value; 0 where it is not a tensor."""
    return int(value.type.tensor_type.elem_type)
