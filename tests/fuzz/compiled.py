"""Fuzzing compiled folders and logs of tuning: what a disk, a copy that stopped or a person may have damaged.

Each load runs in a process of its own, since what was damaged is machine code.
"""

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rmsnorm_deploy.errors import RmsNormDeployError
from tests.fuzz.path import place_of
from tests.fuzz.process import MEMORY, SECONDS, Worker

_JSON = (
    None,
    True,
    0,
    -1,
    1,
    7,
    3.5,
    10**9,
    2**63,
    -(2**70),
    1e400,
    "",
    "x",
    "llvm",
    "..",
    [],
    {},
    [None],
    [[]],
    {"a": 1},
)
_ADDRESSES = 4 * MEMORY
REFUSED, RIGHT = "refused", "right"


def a_model():
    """A norm and a matrix that is large enough for the file of weights."""
    info = helper.make_tensor_value_info
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal(64), "v": rng.standard_normal((64, 32))}
    nodes = [
        helper.make_node("RMSNormalization", ["x", "w"], ["n"], epsilon=1e-6),
        helper.make_node("MatMul", ["n", "v"], ["y"]),
    ]
    tensors = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()]
    inputs, outputs = [info("x", TensorProto.FLOAT, ["rows", 64])], [info("y", TensorProto.FLOAT, ["rows", 32])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def feeds():
    return {"x": np.linspace(-2, 3, 192, dtype=np.float32).reshape(3, 64)}


def prepare(folder):
    """A compiled folder, a log of tuning, the model and its outputs; all mutations begin here."""
    import rmsnorm_deploy.tvm as tvm

    folder.mkdir(parents=True)
    onnx.save(a_model(), folder / "m.onnx")
    # the smallest search that writes a whole log
    tvm.tune(folder / "m.onnx", log=folder / "log.json", rows=[1], trials=2)
    tvm.compile(folder / "m.onnx", output=folder / "compiled")
    np.save(folder / "y.npy", tvm.load(folder / "compiled")(feeds())["y"])


def _damaged_json(value, rng):
    """One thing in it changed: a value, a key, or an entry that is missing or there twice."""
    places = []

    def visit(node):
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            places.append((node, key))
            visit(node[key])

    visit(value)
    node, key = rng.choice(places)
    how = rng.randrange(8)
    if how == 0:
        del node[key]
    elif how == 1 and isinstance(node, list):
        node.append(node[key])
    elif how == 2 and isinstance(node, dict):
        node[rng.choice(["x", "", "version"])] = node.pop(key)
    elif how == 3 and type(node[key]) is int:
        node[key] += rng.choice([-1, 1, 10**9, -(10**9), 2**40])
    elif how == 4 and isinstance(node[key], str):
        node[key] = rng.choice(["", "\0", node[key] * 1000, node[key][:-1], "../" + node[key], "é"])
    else:
        node[key] = rng.choice(_JSON)
    return value


def _damaged_bytes(path, rng):
    data = bytearray(path.read_bytes())
    how = rng.randrange(7)
    at = rng.randrange(max(1, len(data)))
    if how < 2:
        for _ in range(rng.choice([1, 1, 3, 100])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == 2:
        del data[at:]
    elif how == 3:
        data[at : at + 4096] = bytes(len(data[at : at + 4096]))
    elif how == 4:
        data += b"\0" * rng.choice([1, 4096])
    elif how == 5:
        data = bytearray(rng.choice([b"", b"\x7fELF", b"{}", b"null"]))
    else:
        del data[at : at + rng.choice([1, 64])]
    path.write_bytes(bytes(data))


def damage(folder, rng):
    """Change one thing in a compiled folder; sometimes the size that is written down follows."""
    files = sorted(p for p in folder.iterdir())
    description = folder / "model.json"
    how = rng.random()
    if how < 0.45:
        value = _damaged_json(json.loads(description.read_text()), rng)
        description.write_text(json.dumps(value))
    elif how < 0.85:
        path = rng.choice(files)
        before = path.stat().st_size
        _damaged_bytes(path, rng)
        if rng.random() < 0.5 and path != description:
            text = description.read_text()
            description.write_text(text.replace(f": {before}", f": {path.stat().st_size}"))
    elif how < 0.9:
        rng.choice(files).unlink()
    elif how < 0.95:
        path, other = rng.sample(files, 2)
        path.write_bytes(other.read_bytes())
    else:
        path = rng.choice(files)
        path.unlink()
        rng.choice([path.mkdir, lambda: path.symlink_to("nowhere"), lambda: path.symlink_to("/dev/zero")])()


def _aside(job):
    """What ``job()`` returns in a copy of this process, or how that ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # TVM takes some address space itself, and memory none
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                said = job()
        except RmsNormDeployError:
            said = REFUSED
        except BaseException as error:
            said = f"{type(error).__name__} in {place_of(error)}: {str(error)[:300]}"
        os.write(writer, said.encode(errors="replace")[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        said = answers.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"died by {signal.Signals(os.WTERMSIG(status)).name}"
    return said


def _load(folder, expected):
    import rmsnorm_deploy.tvm as tvm

    got = tvm.load(folder)(feeds())
    if list(got) != ["y"] or got["y"].dtype != expected.dtype or got["y"].shape != expected.shape:
        return "other outputs"
    return RIGHT if np.allclose(got["y"], expected, rtol=1e-4, atol=1e-4) else "other numbers"


def _compile(folder, log):
    import rmsnorm_deploy.tvm as tvm

    tvm.compile(folder / "m.onnx", output=log.with_name("c"), tuned=log)
    return _load(log.with_name("c"), np.load(folder / "y.npy"))


def work(request, say):
    """One damaged folder, or log: how its use ended."""
    import rmsnorm_deploy.tvm as tvm

    assert tvm.load  # TVM is loaded once, and not by each copy of this process
    origin, number = Path(request["folder"]), request["number"]
    rng = random.Random(f"compiled {request['seed']} {number}")
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        if request["logs"]:
            log = here / "log.json"
            log.write_text(json.dumps(_damaged_json(json.loads((origin / "log.json").read_text()), rng)))
            if rng.random() < 0.1:
                _damaged_bytes(log, rng)
            return _aside(lambda: _compile(origin, log))
        folder = here / "compiled"
        shutil.copytree(origin / "compiled", folder)
        damage(folder, rng)
        expected = np.load(origin / "y.npy")
        return _aside(lambda: _load(folder, expected))


def campaign(seed, first, count, folder, report=sys.stdout.write, logs=False):
    """Damage ``count`` folders, or logs, under ``folder``. The faults, with the number of the first that shows each."""
    folder = Path(folder)
    if not (folder / "y.npy").exists():
        shutil.rmtree(folder, ignore_errors=True)
        prepare(folder)
    faults, counts = {}, {}
    with Worker("tests.fuzz.compiled") as worker:
        for number in range(first, first + count):
            result = worker({"seed": seed, "number": number, "folder": str(folder.absolute()), "logs": logs})
            said = result.answer if result.answer is not None else result.death
            kind = said.partition(": ")[0]
            counts[kind] = counts.get(kind, 0) + 1
            if kind not in (REFUSED, RIGHT) and kind not in faults:
                faults[kind] = number
                report(f"FOUND at {'log' if logs else 'folder'} {number}: {said}\n")
    report("".join(f"{n:8d}  {what}\n" for what, n in sorted(counts.items())))
    return faults
