"""Unfusing a model: our operators go in, standard operators come out."""

from __future__ import annotations

import os
from typing import overload

import onnx
import onnx_ir as ir

from rmsnorm_deploy.fusing.forms import STANDARD
from rmsnorm_deploy.fusing.fuse import rewritten
from rmsnorm_deploy.fusing.report import FusionReport


@overload
def unfuse(
    model: str | os.PathLike[str] | onnx.ModelProto, *, dry_run: bool = ...
) -> tuple[onnx.ModelProto, FusionReport]: ...


@overload
def unfuse(model: ir.Model, *, dry_run: bool = ...) -> tuple[ir.Model, FusionReport]: ...


def unfuse(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model, *, dry_run: bool = False
) -> tuple[onnx.ModelProto | ir.Model, FusionReport]:
    """Write every norm of ours in ``model`` as standard operators, which every runtime knows.

    The numbers stay, bit for bit where each operator is computed in its own type; so do the opset and all names. Fusing
    the result gives the same norms again. Other norms are left as they are: :func:`rmsnorm_deploy.fuse` with the form
    ``standard`` writes those too. What fusing had said in the model's ``metadata_props`` goes.

    The caller's object or file is not changed, and weights are not read.

    Args:
        model: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        dry_run: only say what would be done; the model returned is the original (for a path: as loaded).

    Returns:
        The model without our operators, an ``onnx_ir.Model`` for one and an ``onnx.ModelProto`` otherwise, and the
        report. A node of ours that is not valid stays, and the report says why.

    Raises:
        ModelError: as :func:`rmsnorm_deploy.fuse`; so does UsageError.
    """
    return rewritten(model, STANDARD, dry_run, "unfuse")
