"""What a fused model says of itself: which tool wrote its norms, of which release, in which form. Never when."""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_deploy import __version__
from rmsnorm_deploy.fusing.clearing import holds_ours
from rmsnorm_deploy.fusing.draft import METADATA
from rmsnorm_deploy.fusing.forms import Form
from rmsnorm_deploy.fusing.report import Task

FUSED_BY = METADATA + "fused_by"
"""The key of the tool and its release, such as "rmsnorm_deploy 0.1.0", in the ``metadata_props`` of a model."""
FORM = METADATA + "form"
"""The key of the form that its norms were written in."""


def sign(model: ir.Model, form: Form, task: Task) -> None:
    """Let ``model``, whose norms were just written, say so; or say nothing any more, once none of them is ours.

    Args:
        model: changed in place; nothing but these two entries.
        form: what the norms were written as.
        task: "unfuse" takes the entries away, unless a node of ours has to stay.
    """
    if task == "fuse":
        # onnx_ir writes them by name
        model.metadata_props[FORM] = form.value
        model.metadata_props[FUSED_BY] = f"rmsnorm_deploy {__version__}"
    elif not holds_ours(model):
        for key in (FUSED_BY, FORM):
            model.metadata_props.pop(key, None)
