"""What surrounds every run of the fuser: errors in words for models that are not valid, no garbage collection."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from rmsnorm_deploy.errors import ModelError, RmsNormDeployError, first_line
from rmsnorm_deploy.model.load import load_proto
from rmsnorm_deploy.model.skeleton import ir_without_weights
from rmsnorm_deploy.model.validity import complaint

Model = str | os.PathLike[str] | onnx.ModelProto | ir.Model


@contextlib.contextmanager
def model_errors(model: Model) -> Iterator[None]:
    """Make a ``ModelError`` of whatever is raised inside for a model that onnx's checker does not accept."""
    with _collector_paused():
        try:
            yield
        except RmsNormDeployError:
            raise
        except Exception as error:
            # a file with flipped bits can be wrong in any way: where onnx calls the model invalid, that is the answer
            found = _complaint(model)
            if not found:
                raise
            raise ModelError(f"the model is not valid: {found}", "Export or copy it again.") from error


def _complaint(model: Model) -> str:
    try:
        if isinstance(model, ir.Model):
            model = ir.to_proto(ir_without_weights(model)[0])
        return complaint(model if isinstance(model, onnx.ModelProto) else load_proto(model))
    except Exception as error:  # onnx_ir raises many types on graphs that contradict themselves
        return error.message if isinstance(error, ModelError) else first_line(error)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """No garbage collection meanwhile: a graph is many small live objects, and scanning them doubles the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
