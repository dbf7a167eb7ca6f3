"""Which operator a node or a function is, also where a tool has put a prefix before its name."""

from __future__ import annotations

from rmsnorm_deploy.op.definition import Op
from rmsnorm_deploy.op.versions import DOMAIN


def is_ours(domain: str, name: str) -> bool:
    """Whether a node or function of this domain and name is one of the operators, as this package writes them."""
    return domain == DOMAIN and name in _BY_NAME


def op_named(domain: str, name: str, inputs: int, outputs: int) -> Op | None:
    """The operator that a node or a function may be, by its name and signature; None where it cannot be one.

    ``onnx.compose`` (``add_prefix``, ``merge_models``) puts a prefix before the names of functions and of the nodes
    that call them: ``rmsnorm_deploy::a_RMSNorm``. The signature tells ``Add`` + ``RMSNorm`` from ``AddRMSNorm``.

    Args:
        domain: of the node or function.
        name: its ``op_type``, or the function's name.
        inputs: how many it has.
        outputs: how many it has.
    """
    if domain != DOMAIN:
        return None
    fitting = (op for op in Op if name.endswith(op.value) and (len(op.inputs), len(op.outputs)) == (inputs, outputs))
    return next(fitting, _BY_NAME.get(name))


_BY_NAME = {op.value: op for op in Op}
