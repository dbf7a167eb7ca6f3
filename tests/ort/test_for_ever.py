"""Files fused by each release run for ever, in every onnxruntime: a version of the domain never changes its meaning."""

import subprocess
import sys

import numpy as np
import onnx
import pytest

from rmsnorm_deploy.op import DOMAIN, NormParameters, Op, version_of
from rmsnorm_deploy.run.library import library_path
from tests.support.judge import units
from tests.support.older import ROOT, VERSIONS, python_with
from tests.support.run_files import WAYS

RELEASES = sorted(folder for folder in (ROOT / "tests" / "data").iterdir() if folder.is_dir())


@pytest.fixture(scope="module", params=RELEASES, ids=lambda folder: folder.name)
def release(request):
    return request.param


@pytest.fixture(scope="module")
def results(release, tmp_path_factory):
    """Outputs of a release's files, by the onnxruntime in which they ran."""
    made = {}

    def of(version):
        if version not in made:
            python = sys.executable if version == "installed" else python_with(version)
            folder = tmp_path_factory.mktemp(version)
            command = [python, "-m", "tests.support.run_files", release, folder, library_path()]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-3000:]
            made[version] = {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")}
        return made[version]

    return of


def test_there_are_files_of_the_first_release():
    models = [onnx.load(path) for path in (ROOT / "tests" / "data" / "0.1.0").glob("*.onnx")]
    assert len(models) == 16
    assert {n.op_type for model in models for n in model.graph.node if n.domain == DOMAIN} == {*Op}


@pytest.mark.parametrize("runtime", ["installed", *VERSIONS])
def test_a_fused_file_gives_what_it_gave(release, results, runtime):
    files = sorted(release.glob("*.onnx"))
    assert sorted(results(runtime)) == [path.stem for path in files]
    for path in files:
        model = onnx.load(path)
        onnx.checker.check_model(model, full_check=True)
        (node,) = (n for n in model.graph.node if n.domain == DOMAIN)
        truth = np.load(path.with_suffix(".npz"))["truth"]
        if path.stem.startswith("quantised"):
            for way in WAYS:
                assert np.array_equal(results(runtime)[path.stem][way], truth), (path.stem, way)
            continue
        p = NormParameters.from_node(node, version=version_of({o.domain: o.version for o in model.opset_import}))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(p.output_type)
        slack = 6 if p.output_type in (1, 11) else 1.01 if p.scale_type == 1 else 3
        for way in WAYS:
            got = results(runtime)[path.stem][way].astype(dtype)
            assert units(got, truth, axis=p.axes) <= slack, (path.stem, way)


@pytest.mark.parametrize("runtime", VERSIONS)
def test_the_library_gives_the_same_bits_in_every_onnxruntime(results, runtime):
    for name, made in results(runtime).items():
        for way in (way for way in WAYS if way.startswith("library")):
            assert made[way].tobytes() == results("installed")[name][way].tobytes(), (name, way)
