"""Whole models compiled for GPUs, on a machine that has none: the folder, the passes, and what loading says."""

import json
import shutil
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

import tvm as tvm_itself

from rmsnorm_deploy import tvm
from rmsnorm_deploy.errors import MissingEnvironment, ModelError, UsageError
from rmsnorm_deploy.tvm.importer.convert import import_prepared
from rmsnorm_deploy.tvm.importer.prepare import prepared
from rmsnorm_deploy.tvm.passes import pipeline
from rmsnorm_deploy.tvm.schedules.cpu.choose import CpuSchedules
from rmsnorm_deploy.tvm.schedules.gpu.choose import GpuSchedules
from rmsnorm_deploy.tvm.schedules.registry import schedules_for
from rmsnorm_deploy.tvm.targets.registry import GPUS, TARGETS
from rmsnorm_deploy.tvm.targets.resolve import resolve, this_cpu

MODELS = sorted((Path(__file__).parent.parent.parent / "samples" / "models").glob("*.onnx"))
EVERYWHERE = ["cuda", "opencl", "metal"]


@pytest.mark.parametrize("target", EVERYWHERE)
@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_every_kernel_of_an_export_is_scheduled_and_has_source(target, path):
    resolved = resolve(target)
    module = pipeline.run(import_prepared(prepared(path)), resolved)
    kernels = {v.name_hint: f for v, f in module.functions_items() if isinstance(f, tvm_itself.tirx.PrimFunc)}
    on_gpu = {name for name, f in kernels.items() if "thread_binding" in f.script()}
    norms = {name for name in kernels if "rms_norm_" in name}
    assert norms <= on_gpu
    assert all(kernels[name].attrs["tirx.is_scheduled"] for name in on_gpu)
    built = tvm_itself.tirx.build(tvm_itself.IRModule({name: kernels[name] for name in on_gpu}), target=resolved)
    source = built.imports[0].inspect_source()
    for name in norms:
        assert f"{name}_kernel(" in source


@pytest.mark.parametrize("target", [*EVERYWHERE, "webgpu"])
def test_a_norm_of_a_tensor_of_three_dimensions_is_one_kernel(target):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("RMSNormalization", ["x", "w"], ["y"])],
        "g",
        [info("x", TensorProto.FLOAT, ("batch", "seq", 64)), info("w", TensorProto.FLOAT, (64,))],
        [info("y", TensorProto.FLOAT, ("batch", "seq", 64))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    module = pipeline.run(import_prepared(prepared(model)), resolve(target))
    kernels = [v.name_hint for v, f in module.functions_items() if "thread_binding" in f.script()]
    assert kernels == ["rms_norm_rows_64_float32"]


@pytest.mark.parametrize("target", ["opencl", "metal", "webgpu"])
def test_the_folder_and_what_is_missing_to_run_it(target, small_model, tmp_path):
    made = tvm.compile(small_model, target, output=tmp_path / "c", dump_ir=tmp_path / "ir")
    assert (made.target, made.norms, made.kernels) == (target, 1, 1)
    said = json.loads((tmp_path / "c" / "model.json").read_text())
    assert (said["target"], said["mcpu"], said["architectures"]) == (target, this_cpu(), [])
    (after,) = (tmp_path / "ir").glob("*_schedule_rest.py")
    (before,) = (tmp_path / "ir").glob("*_fuse_kernels.py")
    assert after.read_text().count("def rms_norm_rows_48_float32(") == 1
    assert before.read_text().count("def rms_norm_rows_48_float32(") == 1
    assert "thread_binding" in after.read_text().split("def rms_norm_rows_48_float32(")[0]
    with pytest.raises(MissingEnvironment, match=f"TVM has no runtime for target '{target}' here"):
        tvm.load(tmp_path / "c")


def test_the_cpu_that_drives_the_gpu(small_model, tmp_path):
    assert tvm.compile(small_model, "opencl", "generic", output=tmp_path / "c").mcpu == "generic"
    with pytest.raises(UsageError, match="knows no CPU 'abacus'"):
        tvm.compile(small_model, "opencl", "abacus", output=tmp_path / "d")
    with pytest.raises(UsageError, match="has no GPU architectures to choose from"):
        tvm.compile(small_model, "opencl", output=tmp_path / "d", arch="sm_80")


@pytest.mark.skipif(shutil.which("hipcc") is not None, reason="ROCm is installed")
def test_rocm_says_what_it_needs(small_model, tmp_path, monkeypatch):
    monkeypatch.delenv("ROCM_PATH", raising=False)
    with pytest.raises(MissingEnvironment, match="needs an installation of ROCm") as raised:
        tvm.compile(small_model, "rocm", output=tmp_path / "c")
    assert "ROCM_PATH" in str(raised.value)
    with pytest.raises(UsageError, match="'gfx1' is not a GPU that is known for target 'rocm'"):
        tvm.compile(small_model, "rocm", output=tmp_path / "c", arch="gfx1")


def test_webgpu_has_no_64_bit_integers(tmp_path):
    with pytest.raises(ModelError, match="WebGPU has no 64-bit integers"):
        tvm.compile(MODELS[0], "webgpu", output=tmp_path / "c")


@pytest.mark.parametrize("target", ["metal", "webgpu"])
def test_a_norm_in_float64_is_refused_by_name(target, tmp_path):
    node = helper.make_node("RMSNormalization", ["x", "w"], ["y"], epsilon=1e-6, stash_type=TensorProto.DOUBLE)
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.DOUBLE, (3, 48)), info("w", TensorProto.DOUBLE, (48,))]
    graph = helper.make_graph([node], "g", inputs, [info("y", TensorProto.DOUBLE, (3, 48))])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"has no float64, which is the type of the values of norm \w*rms_norm_"):
        tvm.compile(tmp_path / "m.onnx", target, output=tmp_path / "c")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("target", EVERYWHERE)
def test_a_large_matrix_product_does_not_end_the_process(target, dtype):
    """TVM 0.27 does when it makes use of tensor cores or simdgroup matrices."""
    relax = tvm_itself.relax
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType([256, 256], dtype)) for name in "xw")
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(relax.op.matmul(x, w)))
        builder.emit_func_output(y)
    module = pipeline.run(builder.get(), resolve(target))
    assert "thread_binding" in module.script()


def test_each_target_has_its_schedules():
    assert set(TARGETS) >= {"llvm", "cuda", "rocm", "opencl", "metal", "webgpu"}
    for name in TARGETS:
        found = schedules_for(resolve(name))
        assert isinstance(found, CpuSchedules) if name == "llvm" else found == GpuSchedules(GPUS[name])
