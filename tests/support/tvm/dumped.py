"""Compiling, with what one pass leaves written out: to write what each leaves takes a fifth of the time."""

import pytest

from rmsnorm_deploy import tvm
from rmsnorm_deploy.tvm.passes import pipeline


def compile_and_dump(folder, after, **options):
    """Compiles ``m.onnx`` of a folder to ``c`` in it; ``ir`` has what --dump-ir writes after one pass, if it runs."""
    write = pipeline._write

    def write_one(module, path):
        if path.stem.partition("_")[2] == after:
            write(module, path)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pipeline, "_write", write_one)
        tvm.compile(folder / "m.onnx", output=folder / "c", dump_ir=folder / "ir", **options)
