"""Whether a function in a file is one of ours by what it computes, not by what it is called."""

from __future__ import annotations

import dataclasses
import functools
import hashlib

from onnx import AttributeProto, FunctionProto, TensorProto, numpy_helper

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
    "e161bd8627c9cb7d624d": Spelling(Op.RMS_NORM, 11, 11),  # 0.1.0
    "ee622ea90cf12f3e18ab": Spelling(Op.RMS_NORM, 12, 17),
    "26c36db37548ebec7381": Spelling(Op.RMS_NORM, 18),
    "6b836ace302349f7e0b9": Spelling(Op.ADD_RMS_NORM, 11, 11),
    "ac70ab6ae5969180880d": Spelling(Op.ADD_RMS_NORM, 12, 17),
    "03bd85be715586c24823": Spelling(Op.ADD_RMS_NORM, 18),
    "8c646c6bda6117cd0eba": Spelling(Op.GENERAL_RMS_NORM, 11, 11),
    "c6983cc5211ace7ea733": Spelling(Op.GENERAL_RMS_NORM, 12, 17),
    "c8dfd8000a13db7f5601": Spelling(Op.GENERAL_RMS_NORM, 18),
    "29d080107babba389e50": Spelling(Op.GATED_RMS_NORM, 11, 11),
    "8c034bea4edb1169c014": Spelling(Op.GATED_RMS_NORM, 12, 14),
    "f93b502dc72dc86c30df": Spelling(Op.GATED_RMS_NORM, 15, 17),
    "fb5272345e99778c2df1": Spelling(Op.GATED_RMS_NORM, 18),
    "ae57b72cb6baef827f40": Spelling(Op.RMS_NORM_QUANTIZE, 11, 11),
    "6ca2def57cda6a640504": Spelling(Op.RMS_NORM_QUANTIZE, 12, 14),
    "3c60c1f8148be479abc2": Spelling(Op.RMS_NORM_QUANTIZE, 15, 17),
    "fd8e3ba629a37dda6869": Spelling(Op.RMS_NORM_QUANTIZE, 18),
    "ee36c31e4c57d007a5ca": Spelling(Op.ADD_RMS_NORM_QUANTIZE, 11, 11),
    "4ed92e876bac50dbcaa4": Spelling(Op.ADD_RMS_NORM_QUANTIZE, 12, 14),
    "506ee0b44186c1edd95a": Spelling(Op.ADD_RMS_NORM_QUANTIZE, 15, 17),
    "ed64074fd6a56f8eae90": Spelling(Op.ADD_RMS_NORM_QUANTIZE, 18),
    "e442fa05614d6047c8c4": Spelling(Op.RMS_NORM_DYNAMIC_QUANTIZE, 11, 11),
    "b7858169b8605749f55f": Spelling(Op.RMS_NORM_DYNAMIC_QUANTIZE, 12, 14),
    "59a7ea119c4bde5327eb": Spelling(Op.RMS_NORM_DYNAMIC_QUANTIZE, 15, 17),
    "324e5dc6e5e22caf5781": Spelling(Op.RMS_NORM_DYNAMIC_QUANTIZE, 18),
    "88a7d5ed52449096432a": Spelling(Op.ADD_RMS_NORM_DYNAMIC_QUANTIZE, 11, 11),
    "e740d1e5fcfc1f0bd834": Spelling(Op.ADD_RMS_NORM_DYNAMIC_QUANTIZE, 12, 14),
    "08ff032f4ef594e0c181": Spelling(Op.ADD_RMS_NORM_DYNAMIC_QUANTIZE, 15, 17),
    "7f1aa91dcc90e16c36d7": Spelling(Op.ADD_RMS_NORM_DYNAMIC_QUANTIZE, 18),
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
    """What a function computes, as a short text.

    Equal for functions that differ in names, texts, the order of nodes, and nodes that are there twice, that nobody
    needs or that change nothing: passes over a model do all of that to functions as well.
    """
    known = {name: f"in{i}" for i, name in enumerate(function.input)}
    for node in function.node:
        inputs = [known.get(name, f"?{name}") if name else "" for name in node.input]
        domain = node.domain if node.domain not in ("", "ai.onnx") else ""
        if (domain, node.op_type) == ("", "Identity"):
            known[node.output[0]] = inputs[0]
            continue
        attributes = sorted(map(_attribute, node.attribute))
        for i, name in enumerate(node.output):
            known[name] = _digest(f"{domain}:{node.op_type}({inputs}){attributes}[{i}]")
    return _digest(f"{len(function.input)}{[known.get(name, f'?{name}') for name in function.output]}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _attribute(a: AttributeProto) -> str:
    if a.ref_attr_name:
        return f"{a.name}=@{a.ref_attr_name}"
    if a.HasField("t"):
        return f"{a.name}={_text(a.t)}"
    return f"{a.name}={a.i},{a.f},{a.s!r},{list(a.ints)},{list(a.floats)},{a.type}"


def _text(tensor: TensorProto) -> str:
    if tensor.data_location == TensorProto.EXTERNAL:
        return "external"
    try:
        return f"{tensor.data_type}{list(tensor.dims)}{numpy_helper.to_array(tensor).tobytes().hex()}"
    except (ValueError, TypeError, KeyError):  # data that do not fit the type, or come in segments
        return f"unreadable {tensor.SerializeToString(deterministic=True).hex()}"


@functools.lru_cache
def _current() -> dict[str, Spelling]:
    return {
        fingerprint(function_body(op, first)): Spelling(op, first, last) for op in Op for first, last in _SPELLED_ANEW
    }
