"""Runs every model of a folder in the onnxruntime of this Python: python -m tests.support.run_files IN OUT LIBRARY.

Beside MODEL.onnx lies MODEL.npz with its inputs, as float64. OUT gets MODEL.npz with the first output of each way of
running it, as float64 too, which holds every type exactly. Needs onnxruntime, NumPy, onnx and ml_dtypes only.
"""

import sys
from pathlib import Path

import numpy as np
import onnx

from tests.support.run import run

WAYS = {
    f"{hook} {'optimised' if optimise else 'as it is'}": (hook, optimise)
    for hook in ("body", "library")
    for optimise in (False, True)
}


def feeds_of(path):
    """The inputs of a model, in its types."""
    graph, stored = onnx.load(path).graph, np.load(path.with_suffix(".npz"))
    types = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in graph.input}
    return {name: stored[name].astype(dtype) for name, dtype in types.items()}


def main(folder, results, library):
    hooks = {"body": None, "library": lambda options: options.register_custom_ops_library(library)}
    for path in sorted(Path(folder).glob("*.onnx")):
        feeds, nodes = feeds_of(path), onnx.load(path)
        made = {}
        for way, (hook, optimise) in WAYS.items():
            if hook == "library" or nodes.functions:
                made[way] = run(nodes, feeds, optimise, hooks[hook])[0].astype(np.float64)
        np.savez(Path(results) / f"{path.stem}.npz", **made)


if __name__ == "__main__":
    main(*sys.argv[1:])
