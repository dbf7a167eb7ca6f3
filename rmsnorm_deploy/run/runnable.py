"""A model in any form, with its weights where they are: what can be run."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import ModelProto

from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.model.external import external_reference, external_tensors, weights_folder
from rmsnorm_deploy.model.load import load_proto

Model = str | os.PathLike[str] | ModelProto | ir.Model


@dataclasses.dataclass(frozen=True)
class Runnable:
    """A model and where its weights are.

    Attributes:
        proto: without external data, which stay in their files.
        path: the file, or None for a model that exists in memory only.
        folder: the folder to which external data are relative.
        weights: bytes of all weights, inside and outside.
    """

    proto: ModelProto
    path: Path | None
    folder: Path | None
    weights: int

    @classmethod
    def of(cls, model: Model, folder: Path | None = None) -> Runnable:
        """``model`` in whatever form; external data of one in memory are relative to ``folder``.

        Raises:
            ModelError: the file cannot be read.
            UsageError: the model is of another type, or its weights are in files of an unknown folder.
        """
        path = None
        if isinstance(model, ModelProto):
            proto = model
        elif isinstance(model, ir.Model):
            proto = ir.to_proto(model)
            folder = folder or weights_folder(model)
        elif isinstance(model, (str, os.PathLike)):
            path = Path(model)
            proto, folder = load_proto(path), path.parent
        else:
            raise UsageError(
                f"cannot run a {type(model).__name__}", "Give a path, an onnx.ModelProto or an onnx_ir.Model."
            )
        outside = sum(external_reference(t)[2] for t in external_tensors(proto))
        if outside and folder is None:
            raise UsageError("the model's weights are in files of an unknown folder", "Give the model's path instead.")
        inside = sum(len(t.raw_data) for t in proto.graph.initializer)
        return cls(proto, path, folder if outside else None, inside + outside)

    @classmethod
    def in_memory(cls, proto: ModelProto) -> Runnable:
        """A model that was made here, with all its weights inside."""
        return cls(proto, None, None, 0)

    @property
    def home(self) -> Path | None:
        """The folder to which external data of what is made from this model are relative; None where there is none."""
        return self.path.parent if self.path is not None else self.folder

    def loaded(self) -> ModelProto:
        """A copy with all weights in memory."""
        copy = ModelProto()
        copy.CopyFrom(self.proto)
        if self.folder is not None:
            onnx.external_data_helper.load_external_data_for_model(copy, str(self.folder))
        return copy
