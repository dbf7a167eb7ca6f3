"""What is left in a file of norms that a tool has taken out of sight: the names that onnxruntime gives when it inlines.

``quant_pre_process``, onnxruntime's saved models and everything that is built on them put the nodes of a function body
in the place of the node that calls it. Each value of the body is then called ``_inlfunc_FUNCTION_VALUE``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rmsnorm_deploy.op.definition import Op
from rmsnorm_deploy.op.versions import DOMAIN

INLINED = "_inlfunc_"
"""What the names of values and nodes begin with that onnxruntime has inlined."""
_OURS = "|".join(sorted((op.value for op in Op), key=len, reverse=True))
_CALL = re.compile(rf"{INLINED}(.{{0,80}}?(?:{_OURS})(?:_token_\d+)?)_")


def inlined_norms(names: Iterable[str]) -> int:
    """How many norms of ours were inlined into one graph, as far as the names of its values tell."""
    return len({found.group(1) for name in names if (found := _CALL.match(name))})


def about_inlined(count: int) -> str:
    """What is to be said of so many."""
    norms = "1 norm" if count == 1 else f"about {count} norms"
    return (
        f"onnxruntime has inlined the function bodies of {norms} (quant_pre_process and models that it saves optimised "
        "do so): they do not run in the library's kernels until the model is fused again"
    )


def about_prefixed(name: str) -> str:
    """What is to be said of nodes that a tool has renamed, such as ``a_RMSNorm``."""
    return (
        f"there are nodes {DOMAIN}::{name}, a name that onnx.compose has given: they do not run in the library's "
        "kernels until the model is fused again, which gives the name back"
    )


def worth_a_look(data: bytes) -> bool:
    """Whether the bytes of a model may hold traces of either kind, without understanding them."""
    return _CALL_IN_BYTES.search(data) is not None or any(name not in _NAMES for name in _operators(data))


def _operators(data: bytes) -> Iterator[bytes]:
    """Names that end as ours do and stand where an operator's name stands: between its length and an attribute."""
    for name in _ENDS:
        end = data.find(name)
        while end >= 0:
            last = end + len(name) - 1
            for length in range(len(name) - 1, 120):
                if data[last - length - 2 : last - length] == bytes((_OP_TYPE, length)):
                    yield data[last - length : last]
                    break
            end = data.find(name, last)


_CALL_IN_BYTES = re.compile(_CALL.pattern.encode())
_NAMES = frozenset(op.value.encode() for op in Op)
_OP_TYPE, _ATTRIBUTE = 4 << 3 | 2, 5 << 3 | 2  # tags of NodeProto's fields
_ENDS = tuple(
    op.value.encode() + bytes((_ATTRIBUTE,)) for op in (Op.RMS_NORM, Op.RMS_NORM_QUANTIZE, Op.RMS_NORM_DYNAMIC_QUANTIZE)
)
