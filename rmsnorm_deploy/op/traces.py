"""What is left in a file of norms that a tool has taken out of sight: the names that onnxruntime gives when it inlines.

``quant_pre_process``, onnxruntime's saved models and everything that is built on them put the nodes of a function body
in the place of the node that calls it. Each value of the body is then called ``_inlfunc_FUNCTION_VALUE``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rmsnorm_deploy.op.definition import Op

INLINED = "_inlfunc_"
"""What the names of values and nodes begin with that onnxruntime has inlined."""
_OURS = "|".join(sorted((op.value for op in Op), key=len, reverse=True))
_CALL = re.compile(rf"{INLINED}(.{{0,80}}?(?:{_OURS})(?:_token_\d+)?)_")


def inlined_norms(names: Iterable[str]) -> int:
    """How many norms of ours the bodies of which were inlined can be told from the names of a model's values."""
    return len({found.group(1) for name in names if (found := _CALL.match(name))})


def may_hold_inlined_norms(data: bytes) -> bool:
    """Whether the bytes of a model hold such a name, without understanding them."""
    return _CALL_IN_BYTES.search(data) is not None


_CALL_IN_BYTES = re.compile(_CALL.pattern.encode())
