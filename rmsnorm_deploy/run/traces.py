"""What a model's file tells of norms that will not run in the library's kernels though they could."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from rmsnorm_deploy.model.graphs import graphs_of, nodes_of
from rmsnorm_deploy.op import is_ours, op_named
from rmsnorm_deploy.op.traces import about_inlined, about_prefixed, inlined_norms, worth_a_look

_WINDOW = 64 * 2**20
"""Bytes of a file that are looked at: the nodes stand before the weights."""


def traces_in(model: Any) -> list[str]:
    """What a user should know about a model that is about to run, one sentence each; nothing for most models.

    Args:
        model: a path or the bytes of a model, which are understood only where they look as if there were something.
    """
    try:
        if isinstance(model, bytes):
            return _said_of(model) if worth_a_look(model[:_WINDOW]) else []
        with Path(model).open("rb") as file:
            start = file.read(_WINDOW)
            return _said_of(start + file.read()) if worth_a_look(start) else []
    except Exception:  # onnxruntime will say what is wrong with it
        return []


def _said_of(data: bytes) -> list[str]:
    proto = onnx.ModelProto()
    proto.ParseFromString(data)
    nodes = list(nodes_of(proto.graph))
    said = []
    # one graph after the other: onnxruntime gives the same names in each
    if count := sum(inlined_norms(name for n in g.node for name in n.output) for g in graphs_of(proto.graph)):
        said.append(about_inlined(count))
    prefixed = sorted(
        n.op_type
        for n in nodes
        if not is_ours(n.domain, n.op_type) and op_named(n.domain, n.op_type, len(n.input), len(n.output)) is not None
    )
    if prefixed:
        said.append(about_prefixed(prefixed[0]))
    return said
