"""What nvcc makes of the GPU schedule, where it is installed: no spills, 128-bit accesses, and a folder with both."""

import json
import re
import shutil
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

import tvm as tvm_itself
import tvm_ffi
from tvm_ffi.registry import remove_global_func

from rmsnorm_deploy import tvm
from rmsnorm_deploy.cli.app import main
from rmsnorm_deploy.errors import MissingEnvironment, UsageError
from rmsnorm_deploy.op import Op
from rmsnorm_deploy.tvm.artefact import cubin
from rmsnorm_deploy.tvm.schedules.gpu.choose import GpuSchedules
from rmsnorm_deploy.tvm.targets.registry import GPUS
from rmsnorm_deploy.tvm.targets.resolve import resolve
from rmsnorm_deploy.tvm.tuning import measure
from tests.support.contract import BF16, F16, F32, F64
from tests.support.cuda import sass
from tests.support.tvm.norms import norm_of

NVCC = shutil.which("nvcc")
pytestmark = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed: it is in the CUDA toolkit")
ARCHITECTURES = ("sm_80", "sm_90")
SCHEDULES = GpuSchedules(GPUS["cuda"])
KERNELS = {
    **{f"rms_{size}_{dtype}": norm_of(size, dtype) for size in (64, 896, 4096, 8192) for dtype in (F32, F16, BF16)},
    **{f"add_{size}_{dtype}": norm_of(size, dtype, Op.ADD_RMS_NORM) for size in (4096, 8192) for dtype in (F32, F16)},
    "gemma_4096": norm_of(4096, BF16, scale_dtype=F32, scale_type=F32),
    "general_4096": norm_of(
        4096, F16, Op.GENERAL_RMS_NORM, epsilon_outside=0.1, rms_floor=0.2, partial_size=1000, scale_dtype=F32
    ),
    "double_512": norm_of(512, F64, stash_type=F64, scale_type=F64),
    "odd_4097": norm_of(4097, F16),
    "long_100000": norm_of(100_000, F16, Op.ADD_RMS_NORM),
    **{f"rms_16384_{dtype}": norm_of(16384, dtype) for dtype in (F32, F16, BF16)},
    **{f"add_16384_{dtype}": norm_of(16384, dtype, Op.ADD_RMS_NORM) for dtype in (F32, F16, BF16)},
    "rms_128_bfloat16": norm_of(128, BF16),
    "rms_128_float16": norm_of(128, F16),
    **{f"any_length_{dtype}": norm_of(None, dtype) for dtype in (F32, F16, BF16)},
    **{f"any_length_add_{dtype}": norm_of(None, dtype, Op.ADD_RMS_NORM) for dtype in (F32, BF16)},
    "any_length_general": norm_of(None, BF16, Op.GENERAL_RMS_NORM, rms_floor=0.2, partial_size=1000, scale_dtype=F32),
    **{
        f"columns_{size}_{dtype}": replace(norm_of(size, dtype), columns=True)
        for size in (64, 256, 1000)
        for dtype in (F32, F16, BF16)
    },
    "add_columns_256": replace(norm_of(256, F16, Op.ADD_RMS_NORM), columns=True),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All kernels in one file, and ``{architecture: ({kernel: what ptxas reports}, PTX, cubin)}``."""
    target = resolve("cuda")
    functions = {
        name: SCHEDULES.kernel(norm, SCHEDULES.default(norm)).with_attr("global_symbol", name)
        for name, norm in KERNELS.items()
    }
    with cubin.taken_out() as sources:
        tvm_itself.tirx.build(tvm_itself.IRModule(functions), target=target)
    folder = tmp_path_factory.mktemp("nvcc")
    (folder / "kernels.cu").write_text(sources[0].text)

    def one(architecture):
        place = folder / architecture
        place.mkdir()
        flags = ["-O3", "-std=c++17", f"-arch={architecture}", "-Xptxas", "-v", "--keep", "--keep-dir", str(place)]
        command = [NVCC, *flags, "-cubin", "-o", str(place / "kernels.cubin"), str(folder / "kernels.cu")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        reports = {
            part.split("'")[0].removesuffix("_kernel"): part
            for part in done.stderr.split("Compiling entry function '")[1:]
        }
        return architecture, (reports, next(place.glob("*.ptx")).read_text(), (place / "kernels.cubin").read_bytes())

    with ThreadPoolExecutor(2) as pool:
        return dict(pool.map(one, ARCHITECTURES))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nothing_is_spilled(made, architecture):
    reports, _, _ = made[architecture]
    assert sorted(reports) == sorted(KERNELS)
    for name, report in reports.items():
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in report, (name, report)
        registers = int(re.search(r"Used (\d+) registers", report).group(1))
        # so that the 65,536 of a multiprocessor hold 1024 threads, and any block
        assert registers <= (96 if name.startswith("double") else 64), (name, registers)
        threads = SCHEDULES.default(KERNELS[name])
        assert registers * threads.threads * threads.rows <= 65536


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_accesses_have_128_bits_where_the_row_allows(made, architecture):
    _, ptx, _ = made[architecture]
    bodies = {part.split("_kernel(")[0]: part for part in ptx.split(".entry ")[1:]}
    assert sorted(bodies) == sorted(KERNELS)
    for name, body in bodies.items():
        norm = KERNELS[name]
        wide = r"global(?:\.nc)?(?:\.L\w+)*\.v4\.[bfu]32|global(?:\.nc)?\.v2\.[bfu]64"
        loads = len(re.findall(rf"ld\.(?:{wide})", body))
        stores = len(re.findall(rf"st\.(?:{wide})", body))
        if norm.size is None:  # both ways, of which the kernel takes one
            assert stores >= (2 if norm.adds else 1), name
            assert loads >= (5 if norm.adds else 3), name
            continue
        if norm.columns or norm.size % 8:
            assert loads == 0
            continue
        vectors = SCHEDULES.default(norm).vectors
        assert stores >= max(1, vectors) * (2 if norm.adds else 1), name
        assert loads >= max(1, vectors) * (3 if norm.adds else 2), name
        assert not re.search(r"(?:ld|st)\.global(?:\.nc)?\.(?:[bu]16|f32|b32|u32|f64)\b", body), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_two_rows_of_16384_fit_on_a_multiprocessor(made, architecture):
    """One reads while the other waits for its sum. Registers are handed out by eights."""
    reports, _, _ = made[architecture]
    for name, norm in KERNELS.items():
        if norm.size == 16384:
            registers = -(-int(re.search(r"Used (\d+) registers", reports[name]).group(1)) // 8) * 8
            schedule = SCHEDULES.default(norm)
            assert 2 * registers * schedule.threads * schedule.rows <= 65536, (name, registers)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_values_of_16_bits_are_rounded_two_at_a_time(made, architecture):
    _, ptx, _ = made[architecture]
    bodies = {part.split("_kernel(")[0]: part for part in ptx.split(".entry ")[1:]}
    for name, kind in (("rms_4096_16", "bf16"), ("rms_4096_10", "f16")):
        norm = KERNELS[name]
        schedule = SCHEDULES.default(norm)
        pairs = schedule.vectors * schedule.lanes // 2
        body = bodies[name]
        assert len(re.findall(rf"cvt\.rn\.{kind}x2\.f32", body)) == pairs
        assert not re.findall(rf"cvt\.rn\.{kind}\.f32", body)
        assert len(re.findall(rf"(?:mul|fma)(?:\.rn)?\.{kind}x2", body)) == pairs


INSTRUCTIONS = {
    # the most that one thread runs through, in sm_80 and sm_90: of which each vector has its part
    "rms_128_bfloat16": 115,
    "rms_128_float16": 115,
    "rms_4096_16": 175,
    "rms_4096_1": 145,
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_instructions(made, architecture, tmp_path):
    tool = sass.tool()
    if tool is None:
        pytest.skip("needs cuobjdump and nvdisasm: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    _, _, code = made[architecture]
    (tmp_path / "kernels.cubin").write_bytes(code)
    found = sass.functions(tool, tmp_path / "kernels.cubin")
    for name, most in INSTRUCTIONS.items():
        names = [i for i in sass.names(found[f"{name}_kernel"]) if not i.startswith("NOP")]
        assert 50 < len(names) <= most, name
        assert not [i for i in names if i.startswith(("CALL", "F2F."))], name  # no division, no rounding of one value


def entries(code):
    """Names of kernels in each ELF file within ``code``, by GPU: the flags of an ELF of CUDA's have its number."""
    found = {}
    for start in (m.start() for m in re.finditer(b"\x7fELF\x02\x01", code)):
        elf = code[start:]
        machine, flags = struct.unpack_from("<H", elf, 18)[0], struct.unpack_from("<I", elf, 48)[0]
        if machine != 190:
            continue
        offset, (size, count) = struct.unpack_from("<Q", elf, 40)[0], struct.unpack_from("<HH", elf, 58)
        sections = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + i * size) for i in range(count)]
        names = set()
        for section in sections:
            if section[1] != 2:  # a symbol table
                continue
            strings = sections[section[6]]
            for at in range(section[4], section[4] + section[5], 24):
                name, info, other = struct.unpack_from("<IBB", elf, at)
                text = elf[strings[4] + name :].split(b"\0", 1)[0].decode()
                if info & 15 == 2 and other & 0x10:  # a function that can be launched
                    names.add(text)
        found[flags >> 8 & 0xFF if flags & 0xFF00 else flags & 0xFF] = names
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small_model):
    path = tmp_path_factory.mktemp("cuda") / "c"
    tvm.compile(small_model, "cuda", output=path)
    return path


def test_the_folder_has_machine_code_for_each_gpu_with_every_kernel_that_the_library_asks_for(folder):
    said = json.loads((folder / "model.json").read_text())
    assert (said["target"], said["architectures"]) == ("cuda", ["sm_80", "sm_90"])
    assert said["blas"] == {"name": "cublas", "version": "", "file": None}
    code = (folder / cubin.KERNELS).read_bytes()
    asked = {str(name) for name in tvm_itself.ir.load_json((folder / cubin.FUNCTIONS).read_text())}
    assert len(asked) > 1
    assert entries(code) == {80: asked, 90: asked}
    library = (folder / "model.so").read_bytes()
    for name in asked:
        assert name.encode() in library
    assert b"__global__" not in library  # no source to be compiled


def test_nothing_of_tvm_stays_changed(folder):
    name = "ffi.Module.create.cuda"
    assert tvm_ffi.get_global_func(name, allow_missing=True) is None
    tvm_ffi.register_global_func(name, lambda *_: None, override=True)
    try:
        with cubin.taken_out():
            pass
        assert tvm_ffi.get_global_func(name)(1) is None
    finally:
        remove_global_func(name)


def test_loading_hands_the_machine_code_to_tvms_cuda_runtime(folder, monkeypatch):
    """A stand-in for that runtime: what it is given, and where its module goes."""
    given = []
    stand_in = tvm_ffi.get_global_func("runtime.CSourceModuleCreate")("", "c", [], [])

    def create(*arguments):
        given.append(arguments)
        return stand_in

    tvm_ffi.register_global_func("ffi.Module.create.cuda", create, override=True)
    try:
        library = tvm_itself.runtime.load_module(str(folder / "model.so")).imports[0]
        cubin.attach(library, folder)
    finally:
        remove_global_func("ffi.Module.create.cuda")
    ((code, form, functions, _),) = given
    assert bytes(code)[:4] == bytes.fromhex("50ed55ba")  # a fat binary
    assert form == "fatbin"
    norm = functions["rms_norm_rows_48_float32_kernel"]
    assert [str(t) for t in norm.arg_types] == ["handle"] * 3 + ["int64"]
    assert list(norm.launch_param_tags) == ["blockIdx.x", "threadIdx.x"]
    assert [m.same_as(stand_in) for m in library.imports] == [True]


def test_a_kernel_is_tuned_as_machine_code():
    target = resolve("cuda", arch="sm_90")
    norm = norm_of(96, F16)
    library = measure._library(norm, SCHEDULES, str(target), SCHEDULES.default(norm))
    asked = {str(name) for name in tvm_itself.ir.load_json((library.parent / cubin.FUNCTIONS).read_text())}
    assert entries((library.parent / cubin.KERNELS).read_bytes()) == {90: asked}
    assert b"__global__" not in library.read_bytes()
    other = measure._library(norm, SCHEDULES, str(target), SCHEDULES.candidates(norm)[1])
    assert (other.parent / cubin.KERNELS).read_bytes() != (library.parent / cubin.KERNELS).read_bytes()
    stand_in = tvm_ffi.get_global_func("runtime.CSourceModuleCreate")("", "c", [], [])
    given = []
    tvm_ffi.register_global_func("ffi.Module.create.cuda", lambda *a: given.append(a) or stand_in, override=True)
    try:
        loaded = measure._loaded(library, "cuda")
    finally:
        remove_global_func("ffi.Module.create.cuda")
    ((code, form, functions, _),) = given
    assert (bytes(code), form) == ((library.parent / cubin.KERNELS).read_bytes(), "fatbin")
    assert {str(name) for name in functions} == asked
    assert [m.same_as(stand_in) for m in loaded.imports] == [True]
    assert loaded.implements_function(measure.SYMBOL)


def test_the_gpus_asked_for(small_model, tmp_path, capfd):
    path = tmp_path / "c"
    assert main(["compile", str(small_model), "-o", str(path), "--target", "cuda", "--arch", "sm_89"]) == 0
    capfd.readouterr()
    assert set(entries((path / cubin.KERNELS).read_bytes())) == {89}
    for arch, said in (
        ("sm_1", "'sm_1' is not a GPU that is known for target"),
        ("sm_80,x", "'x' is not a GPU"),
    ):
        with pytest.raises(UsageError, match=said):
            tvm.compile(small_model, "cuda", output=tmp_path / "d", arch=arch)


def test_without_nvcc(small_model, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    with pytest.raises(MissingEnvironment, match="no nvcc to compile the CUDA kernels with"):
        tvm.compile(small_model, "cuda", output=tmp_path / "c")
    assert not list(tmp_path.iterdir())
