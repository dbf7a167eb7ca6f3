"""A decoder's inputs with a past: which dimensions belong together although exporters name them apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onnx import ModelProto, TensorProto, ValueInfoProto

from rmsnorm_deploy.model.dims import names_in

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_INTEGERS = (TensorProto.INT64, TensorProto.INT32)
_HANDED_ON = ("Cast", "Identity", "Dropout")
_CACHES = ("past", "cache")


@dataclasses.dataclass(frozen=True)
class Decoder:
    """Names of symbolic dimensions, by what they count; a name stands in one of them at most.

    Attributes:
        batch: sequences.
        past: tokens in the caches.
        new: tokens that are fed.
        total: both together, as a mask has them.
    """

    batch: tuple[str, ...]
    past: tuple[str, ...]
    new: tuple[str, ...]
    total: tuple[str, ...]


def decoder_of(model: ModelProto, values: Sequence[ValueInfoProto]) -> Decoder | None:
    """What ``values``, inputs of ``model``, say about its past; None where it has no cache of a free length.

    A cache is a float input of three or more dimensions that the graph concatenates with something along a symbolic
    dimension, or whose name says so. A mask is known by its name, or by four dimensions of which the second is 1;
    tokens are integers of two dimensions, or floats of three.
    """
    joined = _joined(model)
    found: dict[str, list[str]] = {"batch": [], "past": [], "new": [], "total": []}
    rest = []
    for value in values:
        kind, dims = value.type.tensor_type.elem_type, _dims(value)
        axis = _cache_axis(value.name, dims, joined) if kind in _FLOATS and len(dims) >= 3 else None
        if axis is None:
            rest.append((value.name.lower(), kind, dims))
            continue
        found["past"].append(dims[axis])
        if axis != 0:
            found["batch"].append(dims[0])
    if not found["past"]:
        return None
    for name, kind, dims in rest:
        rank = len(dims)
        if "mask" in name or (rank == 4 and _second_is_one(values, name)):
            if rank >= 2:
                found["total"].append(dims[-1])
                found["batch"].append(dims[0])
            if rank >= 3:
                found["new"].append(dims[-2])
        elif kind in _INTEGERS and rank in (1, 2):
            # positions of three rows have their own rank and meaning, and stay as they are
            found["new"].append(dims[-1])
            found["batch"] += dims[:-1]
        elif kind in _FLOATS and rank == 3:
            found["new"].append(dims[1])
            found["batch"].append(dims[0])
    taken: set[str] = set()
    parts = {}
    for part in ("past", "batch", "new", "total"):
        parts[part] = tuple(dict.fromkeys(n for n in found[part] if _is_plain(n) and n not in taken))
        taken |= set(parts[part])
    return Decoder(**parts) if parts["past"] else None


def _dims(value: ValueInfoProto) -> list[str]:
    """Names of the symbolic dimensions; "" for the others."""
    return [d.dim_param for d in value.type.tensor_type.shape.dim]


def _is_plain(name: str) -> bool:
    """Whether it is a name and no arithmetic."""
    terms = names_in(name) if name else None
    return bool(name) and (terms is None or terms <= {name})


def _second_is_one(values: Sequence[ValueInfoProto], name: str) -> bool:
    value = next(v for v in values if v.name.lower() == name)
    return bool(value.type.tensor_type.shape.dim[1].dim_value == 1)


def _cache_axis(name: str, dims: list[str], joined: dict[str, int]) -> int | None:
    axis = joined.get(name)
    if axis is not None and -len(dims) <= axis < len(dims) and dims[axis]:
        return axis % len(dims)
    if any(word in name.lower() for word in _CACHES) or "key_value" in name.lower():
        free = [i for i, d in enumerate(dims) if d and i]
        return 2 if 2 in free else next(iter(free), None)
    return None


def _joined(model: ModelProto) -> dict[str, int]:
    """The axis along which each value is concatenated, casts in between left aside."""
    axes: dict[str, int] = {}
    for node in reversed(model.graph.node):
        if node.op_type == "Concat" and len(node.input) > 1:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            axes |= dict.fromkeys(node.input, axis)
        elif node.op_type in _HANDED_ON and node.output and node.output[0] in axes:
            axes[node.input[0]] = axes[node.output[0]]
    return axes
