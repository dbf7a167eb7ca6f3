"""Fuzzing with bytes of the texts that are read: a compiled folder's ``model.json`` and logs of tuning."""

import functools
import json
import random
import tempfile
from pathlib import Path

from onnx import TensorProto

from rmsnorm_deploy.op import NormParameters, Op
from rmsnorm_deploy.tvm.artefact import description
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.tuning import log
from tests.fuzz import batches
from tests.fuzz.octets import mutated
from tests.fuzz.path import fault_of

DESCRIPTION, LOG = description.DESCRIPTION, "log.json"


@functools.cache
def seeds():
    """A description and a log, as the package writes them, by the names of their files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_description(folder)
        _write_log(folder / LOG)
        return {name: (folder / name).read_bytes() for name in (DESCRIPTION, LOG)}


def _write_description(folder):
    part = {"bytes": 100, "sha256": "0" * 64, "head_sha256": "1" * 64}
    value = {"name": "x", "type": "float16", "shape": ["rows", 64]}
    head = {"schema_version": description.SCHEMA_VERSION, "tvm": "0.27.0", "target": "llvm", "mtriple": "x86_64-linux"}
    values = {"inputs": [value], "outputs": [{**value, "shape": None}], "not_empty": ["rows"]}
    weights = {**part, "tensors": [[[64], "float32", 0], [[64, 32], "float16", 256]]}
    blas = {"name": "libopenblas.so", "version": "0.3", "file": part}
    parts = {"library": part, "blas": blas, "kernel_files": {}, "weights": weights}
    description.write(folder, {**head, **values, **parts})
    description.read(folder)  # what is refused before anything is changed would show nothing


def _write_log(path):
    norm = Norm(NormParameters(Op.RMS_NORM, TensorProto.FLOAT16, epsilon=1e-6), "float32", 64)
    measured = log.Measured({"accumulators": 4}, "", {"1": 2.5}, {"1": 3.0}, [1.2, 1.1], True)
    entry = log.Entry(norm, {"accumulators": 8}, "complete", {"accumulators": 4}, 1.2, 0.01, [measured])
    log.TuningLog("llvm", "x86_64", "znver4", "0.27.0", "local", 2, [1, 32], [entry]).write(path)


def text(seed, number):
    """The name of the file of one execution, and its bytes."""
    rng = random.Random(f"texts {seed} {number}")
    known = seeds()
    name = rng.choice(sorted(known))
    return name, mutated(known[name], rng.choice(sorted(known.values())), rng)


def attempt(name, data, folder):
    """The kind of fault that these bytes show, and the error; empty where there is none."""
    (folder / name).write_bytes(data)

    def look():
        if name == LOG:
            json.dumps(log.read(folder / LOG).to_dict(), allow_nan=False)
            return None
        said = description.read(folder)
        description.require_unchanged(folder, said)
        return ("a change went unnoticed", repr(said)) if said != json.loads(seeds()[name]) else None

    return fault_of(look)


def one(seed, number, folder):
    """One execution by its number."""
    return attempt(*text(seed, number), folder)


def kept(seed, number):
    """The file of one execution."""
    return ".json", text(seed, number)[1]


work = batches.of(one)
