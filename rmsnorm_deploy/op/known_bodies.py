"""Whether a function in a file is one of ours by what it computes, not by what it is called."""

from __future__ import annotations

import dataclasses
import functools
import hashlib

from onnx import FunctionProto, TensorProto, numpy_helper

from rmsnorm_deploy.op.body import MIN_OPSET, function_body
from rmsnorm_deploy.op.definition import Op, attribute_names

_ALWAYS = 2**31


@dataclasses.dataclass(frozen=True)
class Spelling:
    """One spelling of one operator's body.

    Attributes:
        op: the operator.
        first: the oldest ai.onnx opset in which it is valid.
        last: the newest one.
    """

    op: Op
    first: int
    last: int = _ALWAYS


_RELEASED = {
    "19de503ef9e01a1ff99c": Spelling(Op.RMS_NORM, 11, 11),  # 0.1.0
    "25844865bed412d6f246": Spelling(Op.RMS_NORM, 12, 17),
    "a0b8ff0e18946185aa74": Spelling(Op.RMS_NORM, 18),
    "0264f25bafc240f7a72f": Spelling(Op.ADD_RMS_NORM, 11, 11),
    "349694b9b66051343e12": Spelling(Op.ADD_RMS_NORM, 12, 17),
    "c04f3a47bfc60b44c347": Spelling(Op.ADD_RMS_NORM, 18),
    "72664a3248b77c337f5d": Spelling(Op.GENERAL_RMS_NORM, 11, 11),
    "7f75aace50c99364b82b": Spelling(Op.GENERAL_RMS_NORM, 12, 17),
    "96a5bc66babdcd273a5e": Spelling(Op.GENERAL_RMS_NORM, 18),
}
"""Bodies that a release has written, by :func:`fingerprint`. A row stays for ever: so do the files."""
_SPELLED_ANEW = ((MIN_OPSET, 11), (12, 14), (15, 17), (18, _ALWAYS))
"""The ranges of opsets in which the bodies of this release are spelled alike."""


def spelling_of(function: FunctionProto) -> Spelling | None:
    """The spelling that ``function`` is, of this release or an earlier one; None where it is no body of ours.

    Its own name, the names of its nodes and values, its imports and texts do not matter.
    """
    print_ = fingerprint(function)
    return _RELEASED.get(print_) or _current().get(print_)


def is_body_of(function: FunctionProto, op: Op, opset: int, version: int) -> bool:
    """Whether ``function`` is, as it stands, the body of ``op`` in a model of ai.onnx ``opset``.

    Args:
        function: of whatever name.
        op: the operator.
        opset: of ai.onnx, as the model imports it.
        version: of the operators' domain, as the model imports it.
    """
    spelling = spelling_of(function)
    if spelling is None or spelling.op is not op or not spelling.first <= opset <= spelling.last:
        return False
    imports = {o.domain: o.version for o in function.opset_import}
    own = imports.get("", imports.get("ai.onnx"))
    return own == opset and set(attribute_names(op, version)) <= set(function.attribute)


def fingerprint(function: FunctionProto) -> str:
    """What a function computes, as a short text: equal for functions that differ in names and texts alone."""
    names = {name: f"in{i}" for i, name in enumerate(function.input)}
    parts = []
    for node in function.node:
        inputs = [names.get(name, f"?{name}") if name else "" for name in node.input]
        for name in node.output:
            names[name] = f"v{len(names)}"
        attributes = []
        for a in sorted(node.attribute, key=lambda a: a.name):
            if a.ref_attr_name:
                attributes.append(f"{a.name}=@{a.ref_attr_name}")
            elif a.HasField("t"):
                attributes.append(f"{a.name}={_text(a.t)}")
            else:
                attributes.append(f"{a.name}={a.i},{a.f},{a.s!r},{list(a.ints)},{list(a.floats)},{a.type}")
        parts.append(f"{node.domain}:{node.op_type}({','.join(inputs)}){{{';'.join(attributes)}}}{len(node.output)}")
    outputs = [names.get(name, f"?{name}") for name in function.output]
    return hashlib.sha256(f"{parts}{len(function.input)}{outputs}".encode()).hexdigest()[:20]


def _text(tensor: TensorProto) -> str:
    if tensor.data_location == TensorProto.EXTERNAL:
        return "external"
    return f"{tensor.data_type}{list(tensor.dims)}{numpy_helper.to_array(tensor).tobytes().hex()}"


@functools.lru_cache
def _current() -> dict[str, Spelling]:
    return {
        fingerprint(function_body(op, first)): Spelling(op, first, last) for op in Op for first, last in _SPELLED_ANEW
    }
