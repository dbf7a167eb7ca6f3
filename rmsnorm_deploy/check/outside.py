"""A large model with its weights inside, as a file with its weights beside it: what all its variants can share."""

from __future__ import annotations

from pathlib import Path

from rmsnorm_deploy.model.atomic import write_new
from rmsnorm_deploy.model.weights import references, with_weights_in
from rmsnorm_deploy.run.runnable import Runnable


def inside(model: Runnable) -> int:
    """Bytes of the weights that a model has inside."""
    return sum(len(t.raw_data) for t in model.proto.graph.initializer)


def moved_out(model: Runnable, folder: Path, name: str) -> Path:
    """Write a model with all of its weights in one file beside it.

    Args:
        model: what to write.
        folder: where.
        name: of the model.

    Returns:
        The model's file.

    Raises:
        ModelError: its own weight files have changed.
        OSError: there is no space.
    """
    known = references(model.proto, model.home or folder)
    with (folder / f"{name}.data").open("xb") as out:
        proto, _ = with_weights_in(model.proto, known, out, f"{name}.data", all_large=True)
    path = folder / f"{name}.onnx"
    write_new(path, proto.SerializeToString())
    return path
