"""Equal input gives equal bytes: in other processes, hash seeds, threads, places and surroundings, and Pythons."""

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
        for form in ("plugin", "onnx", "ort", "standard"):
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


SURROUNDINGS = """
import concurrent.futures, hashlib, locale, os, pathlib, sys
import onnx
import rmsnorm_deploy
from tests.fuzz.seeds import SAMPLES

locale.setlocale(locale.LC_ALL, "")
way, folder = sys.argv[1], pathlib.Path(sys.argv[2])
folder.mkdir(parents=True)
os.chdir(folder)


def made(path):
    name, digest = path.stem, hashlib.sha256()
    place = pathlib.Path(name) if way == "relative" else folder / name
    (place / "out").mkdir(parents=True)
    plain, outside = place / "plain.onnx", place / "outside.onnx"
    plain.write_bytes(path.read_bytes())
    model = onnx.load(plain)
    onnx.save(model, outside, save_as_external_data=True, location="w.bin", size_threshold=256)
    for source in (plain, outside):
        for form in ("plugin", "onnx", "ort", "standard"):
            for output in (place / "out" / f"{form}_{source.stem}.onnx", place / f"{form}_{source.stem}.onnx"):
                fused, report = rmsnorm_deploy.fuse(source, form=form)
                saved = rmsnorm_deploy.save(fused, output, source=source)
                files = [output, *(output.with_name(f) for f in saved.weight_files)]
                digest.update(b"".join(f.read_bytes() for f in files))
    return digest.hexdigest()


paths = [SAMPLES / "llama_float16.onnx", SAMPLES / "t5_encoder_float32.onnx"]
with concurrent.futures.ThreadPoolExecutor(4 if way == "threads" else 1) as pool:
    print(*pool.map(made, paths))
"""


def test_other_surroundings_give_the_same_bytes(tmp_path):
    """Locale, time zone, working folder, relative names and threads; weights inside, shared and copied."""
    found = {}
    for way, environment in {
        "absolute": {"LC_ALL": "C", "TZ": "UTC"},
        "relative": {"LC_ALL": "C.UTF-8", "TZ": "Pacific/Chatham", "PYTHONHASHSEED": "7"},
        "threads": {"LC_ALL": "C", "TZ": "America/St_Johns", "PYTHONOPTIMIZE": "1"},
    }.items():
        done = subprocess.run(
            [sys.executable, "-c", SURROUNDINGS, way, str(tmp_path / way)],
            env=os.environ | environment | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found[way] = done.stdout.split()
    assert len(set(found["absolute"])) == 2
    assert found["relative"] == found["absolute"]
    assert found["threads"] == found["absolute"]
