"""Equal input gives equal bytes: in another process, with another hash seed, with another Python."""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import hashlib, json, pathlib, random, tempfile
import rmsnorm_deploy
from tests.fuzz.seeds import SAMPLES, spelled
from tests.support.graphs import if_model

with tempfile.TemporaryDirectory() as folder:
    file, output = pathlib.Path(folder) / "m.onnx", pathlib.Path(folder) / "fused.onnx"
    rng = random.Random(1)
    models = [path.read_bytes() for path in sorted(SAMPLES.glob("*.onnx"))]
    models += [m.SerializeToString(deterministic=True) for m in (if_model(), *(spelled(rng) for _ in range(25)))]
    for data in models:
        file.write_bytes(data)
        digest, fused_norms = hashlib.sha256(data), 0
        for form in ("plugin", "onnx", "ort"):
            fused, report = rmsnorm_deploy.fuse(file, form=form)
            rmsnorm_deploy.save(fused, output, source=file, overwrite=True)
            said = json.dumps([report.to_dict(), rmsnorm_deploy.explain(output).to_dict()]).replace(folder, "")
            digest.update(output.read_bytes() + said.encode())
            fused_norms += len(report.fused)
        print(fused_norms, digest.hexdigest())
"""


@functools.cache
def digests(python=sys.executable, hash_seed="0"):
    """A line for each model: how many norms were fused, and a digest of its files and reports."""
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [python, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_there_is_something_to_compare():
    lines = digests()
    assert len(set(lines)) == len(lines) == 30
    assert sum(int(line.split()[0]) > 0 for line in lines) > 18


@pytest.mark.parametrize("hash_seed", ["1", "random"])
def test_other_processes_and_hash_seeds_give_the_same_bytes(hash_seed):
    assert digests(hash_seed=hash_seed) == digests()


def other_pythons():
    """Interpreters of other versions, on the path or in an environment that RMSNORM_DEPLOY_PYTHONS names."""
    named = os.environ.get("RMSNORM_DEPLOY_PYTHONS", "").split(os.pathsep)
    found = [shutil.which(f"python3.{minor}") for minor in range(10, 16) if minor != sys.version_info.minor]
    return [p for p in (*named, *found) if p]


def test_other_pythons_give_the_same_bytes():
    needed = "import onnx, onnx_ir, numpy, ml_dtypes, typer, rich"
    able = [p for p in other_pythons() if subprocess.run([p, "-c", needed], capture_output=True).returncode == 0]
    if not able:
        pytest.skip("no Python of another version has onnx and onnx-ir; RMSNORM_DEPLOY_PYTHONS can name one")
    for python in able:
        assert digests(python) == digests(), python
