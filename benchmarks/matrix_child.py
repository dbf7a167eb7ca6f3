"""What :mod:`benchmarks.matrix` asks in each environment: one check, one line of JSON. Imports what is installed there.

    python matrix_child.py FOLDER

FOLDER has the models; the answers are hashes, which every environment has to agree on, and sentences about faults.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORMS = ("plugin", "ort", "standard")
"""What is compared between environments; the opset of form `onnx` is raised by onnx's own converter."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def program(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rmsnorm_deploy", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "120"})


def required(done: subprocess.CompletedProcess[str], *statuses: int) -> subprocess.CompletedProcess[str]:
    if done.returncode not in (statuses or (0,)) or "Traceback" in done.stderr:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise AssertionError(f"{' '.join(done.args[3:])}: status {done.returncode}: {last}")
    return done


def versions(folder: Path) -> dict[str, str]:
    """The command line's own page; its hash is none, as it differs."""
    import rmsnorm_deploy

    assert required(program("--version")).stdout.split()[-1] == rmsnorm_deploy.__version__
    required(program("doctor", "--json"))
    assert "fuse" in required(program("--help")).stdout
    required(program("fuse", folder / "nothing.onnx", "-o", folder / "no.onnx"), 3)
    required(program("fuse"), 2)
    return {}


def fused_bytes(folder: Path) -> dict[str, str]:
    """Every model in every form, from the library and from the command line."""
    import rmsnorm_deploy

    found = {}
    for path in sorted(folder.glob("*/model.onnx")):
        for form in FORMS:
            output = path.with_name(f"{form}-{os.getpid()}.onnx")
            required(program("fuse", path, "-o", output, "--form", form, "--require", "all"))
            found[f"{path.parent.name} {form}"] = digest(output.read_bytes())
            model, report = rmsnorm_deploy.fuse(path, form=form)
            rmsnorm_deploy.save(model, output, source=path, overwrite=True)
            assert digest(output.read_bytes()) == found[f"{path.parent.name} {form}"], "the library writes other bytes"
            if form == "plugin":
                assert json.loads(required(program("explain", output, "--json")).stdout)["fused"] == []
                required(program("unfuse", output, "-o", path.with_name(f"un-{os.getpid()}.onnx")))
        _, report = rmsnorm_deploy.fuse(path, form="onnx")
        assert report.fused, "form onnx"
    return found


def kernels(folder: Path) -> dict[str, str]:
    """One norm of each operator and type through the library, bit by bit; and the bodies, which are only near."""
    import ml_dtypes  # noqa: F401  (NumPy's bfloat16, which onnx brings)
    import numpy as np
    import onnxruntime as ort

    import rmsnorm_deploy

    found = {}
    for path in sorted(folder.glob("norm-*.onnx")):
        options = ort.SessionOptions()
        options.log_severity_level = 4
        given = dict(np.load(path.with_suffix(".npz")))
        rmsnorm_deploy.register(options)
        outputs = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, given)
        found[path.stem] = digest(b"".join(np.ascontiguousarray(y).tobytes() for y in outputs))
        bodies = ort.SessionOptions()
        bodies.log_severity_level = 4
        plain = ort.InferenceSession(str(path), bodies, providers=["CPUExecutionProvider"]).run(None, given)
        for a, b in zip(outputs, plain, strict=True):
            worst = float(
                np.abs(a.astype(np.float64) - b.astype(np.float64)).max() / np.abs(a.astype(np.float64)).max()
            )
            assert worst < 4e-3, f"{path.stem}: kernel and body differ by {worst:.2g}"
    return found


def sessions(folder: Path) -> dict[str, str]:
    """Whole models: fused files with the library and without, and onnxruntime's own norms by our kernels."""
    import numpy as np

    import rmsnorm_deploy

    for path in sorted(folder.glob("*/model.onnx")):
        output = path.with_name(f"session-{os.getpid()}.onnx")
        required(program("fuse", path, "-o", output, "--verify"))
        required(program("verify", path, output))
    own = rmsnorm_deploy.session(folder / "builtin.onnx", override_builtin=True)
    given = dict(np.load(folder / "builtin.npz"))
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    theirs = ort.InferenceSession(str(folder / "builtin.onnx"), options, providers=["CPUExecutionProvider"])
    for a, b in zip(own.run(None, given), theirs.run(None, given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return {}


CHECKS: dict[str, Callable[[Path], dict[str, str]]] = {
    "command line": versions,
    "same bytes": fused_bytes,
    "kernels, bit by bit": kernels,
    "sessions": sessions,
}


def main() -> None:
    folder = Path(sys.argv[1])
    answers: dict[str, Any] = {}
    for name, check in CHECKS.items():
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answers[name] = {"hashes": check(folder), "fault": ""}
        except Exception as error:
            text = str(error).strip().splitlines() or [""]
            answers[name] = {"hashes": {}, "fault": f"{type(error).__name__}: {text[0]}"[:300]}
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
