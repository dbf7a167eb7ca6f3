"""What nvcc makes of the kernels, where it is installed: no spills, few registers, and accesses of 128 bits.

``python -m tests.kernels.cuda.test_nvcc`` writes ``registers.json`` again, after a change that is meant.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.cuda import sass

ROOT = Path(__file__).resolve().parents[3]
TABLE = Path(__file__).with_name("registers.json")
UNITS = (
    *("rows_float32", "rows_float16", "rows_bfloat16", "strided_float32", "strided_float64"),
    *("outputs_rows", "outputs_values", "gated_rows", "gated_values"),
)
KERNELS = 72
FLAGS = ["-std=c++17", "-O3", "-fmad=false"]  # as in ops/CMakeLists.txt
ARCHITECTURES = ("75", "80", "90", "100")
PTX_OF = "90"
# Registers are handed out by eights for each thread of a warp, so that fewer make no difference; and another release of
# nvcc may need a few more or less without anything being wrong.
TOLERANCE = 8


def known(nvcc):
    listed = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout.split()
    return [architecture for architecture in ARCHITECTURES if f"compute_{architecture}" in listed]


def compiled(nvcc, folder):
    """``{architecture: {kernel: report}}`` with ptxas' report on each, and ``{kernel: PTX}`` of one architecture."""

    def one(job):
        architecture, unit = job
        place = folder / f"{unit}-{architecture}"
        place.mkdir()
        keep = ["--keep", "--keep-dir", place] if architecture == PTX_OF else []
        command = [nvcc, *FLAGS, f"-gencode=arch=compute_{architecture},code=sm_{architecture}", "-Xptxas", "-v", *keep]
        command += ["-c", ROOT / "ops" / "cuda" / f"{unit}.cu", "-o", place / f"{unit}.o"]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        texts = [path.read_text() for path in place.glob("*.ptx")]
        return architecture, done.stderr, texts

    jobs = [(architecture, unit) for architecture in known(nvcc) for unit in UNITS]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(one, jobs))
    objects = {unit: folder / f"{unit}-{PTX_OF}" / f"{unit}.o" for unit in UNITS}
    return (*parsed([log for _, log, _ in done], [text for *_, texts in done for text in texts]), objects)


def parsed(logs, texts):
    """Reports by architecture and kernel, and PTX by kernel, of what nvcc wrote."""
    reports, ptx = {}, {}
    for log in logs:
        for report in log.split("Compiling entry function '")[1:]:
            name, architecture = re.match(r"(\w+)' for 'sm_(\d+)'", report).groups()
            reports.setdefault(architecture, {})[short_name(name)] = report
    for text in texts:
        if f".target sm_{PTX_OF}\n" not in text:
            continue
        for entry in text.split(".entry ")[1:]:
            ptx[short_name(entry.split("(")[0].strip())] = entry
    return reports, ptx


def kept():
    """The folder of the library's own build with what nvcc wrote, if ``make venv`` made it since the last change."""
    sources = [path for part in ("cuda", "contract", "include") for path in (ROOT / "ops" / part).iterdir()]
    newest = max(path.stat().st_mtime for path in sources)
    for folder in (ROOT / "build").glob("*/CMakeFiles/rmsnorm_deploy.dir/cuda"):
        logs = [folder / f"{unit}.cu.o.report" for unit in UNITS]
        if all(log.is_file() and log.stat().st_mtime > newest for log in logs):
            return folder
    return None


def built(folder):
    """The same as ``compiled``, read from there: compiling everything again takes most of a minute."""
    logs = [(folder / f"{unit}.cu.o.report").read_text() for unit in UNITS]
    texts = [path.read_text() for unit in UNITS for path in (folder / f"{unit}.cu.o.kept").glob("*.ptx")]
    return (*parsed(logs, texts), {unit: folder / f"{unit}.cu.o" for unit in UNITS})


TYPES = {"f": "float", "d": "double", "6__half": "half", "13__nv_bfloat16": "bfloat16"}


def short_name(symbol):
    """``rows_kernel<half, float, 2, false, 0>`` of a mangled kernel; only what the kernels' parameters are made of."""
    match = re.match(r"_ZN14rmsnorm_deploy4cuda\d+(\w+?_kernel)I(.*?)EEvNS0_\d+(?:Output|Gated)?(?:Row)?ArgsE$", symbol)
    assert match, symbol
    name, rest = match.groups()
    parts, types = [], []
    while rest:
        if found := re.match(r"Li(\d+)E|Lb([01])E", rest):
            parts.append(found[1] or ("true" if found[2] == "1" else "false"))
        elif found := re.match(r"S\d*_", rest):
            parts.append(types[-1])
        else:
            found = re.match(r"f|d|6__half|13__nv_bfloat16", rest)
            types.append(TYPES[found[0]])
            parts.append(types[-1])
        rest = rest[found.end() :]
    return f"{name}<{', '.join(parts)}>"


def registers(report):
    return int(re.search(r"Used (\d+) registers", report)[1])


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc, to compile the CUDA kernels; install the CUDA toolkit and put nvcc on the PATH")
    folder = kept()
    return built(folder) if folder else compiled(nvcc, tmp_path_factory.mktemp("nvcc"))


def test_every_architecture_is_in_the_report(build):
    reports, ptx, _ = build
    assert sorted(reports) == sorted(known(shutil.which("nvcc")))
    assert len(ptx) == KERNELS


def test_nothing_spills(build):
    reports, _, _ = build
    assert reports
    for architecture, kernels in reports.items():
        assert len(kernels) == KERNELS
        for name, report in kernels.items():
            found = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
            assert [int(number) for number in found.groups()] == [0, 0, 0], f"{name} on sm_{architecture}"


def test_registers_are_those_of_the_table(build):
    reports, _, _ = build
    table = json.loads(TABLE.read_text())
    for architecture, kernels in reports.items():
        expected = table[f"sm_{architecture}"]
        assert set(expected) == set(kernels)
        for name, report in kernels.items():
            assert abs(registers(report) - expected[name]) <= TOLERANCE, f"{name} on sm_{architecture}"


def accesses(ptx, kind):
    """How often each instruction of a kind occurs, as ``{"ld.global.v4.u32": 4}``."""
    found = re.findall(rf"\b({kind}(?:\.\w+)+)", ptx)
    return {name: found.count(name) for name in set(found) if "param" not in name}


def count(found, pattern):
    return sum(number for name, number in found.items() if re.fullmatch(pattern, name))


def test_rows_are_loaded_and_stored_in_128_bits(build):
    _, ptx, _ = build
    checked = 0
    for name, text in ptx.items():
        match = re.fullmatch(r"rows_kernel<(\w+), (\w+), (\d), (true|false), (\d)>", name)
        if not match:
            continue
        loads, stores = accesses(text, "ld"), accesses(text, "st")
        tensors = 2 if match[4] == "true" else 1
        # Each chunk of x (and residual), and of y (and sum), by one instruction, and no other way to global memory; and
        # three times more in the loops for rows that are not ordinary, two of which go over both halves of a row.
        chunks = int(match[3])
        assert count(loads, r"ld\.global\.v4\.\w+") == tensors * chunks + chunks + 1
        assert count(loads, r"ld\.global\.(?!nc|v4).*") == 0
        assert count(stores, r"st\.global\.v4\.\w+") == tensors * chunks + 1
        assert count(stores, r"st\.global\.(?!v4).*") == 0
        # Scale and bias, through the read-only path; one value alone is the exception. Where both roundings are certain
        # there is no bias, and the scale may be float32.
        parts = 2 if match[1] != match[2] else 1
        weights = {"0": 2 * parts, "1": parts, "2": 3}[match[5]]
        assert count(loads, r"ld\.global\.nc\.v4\.\w+") == weights * (chunks + 1)
        # Nothing through generic addresses, which would be slower and hide what they are.
        assert count(loads, r"ld\.(?!global|shared).*") == count(stores, r"st\.(?!global|shared).*") == 0
        checked += 1
    assert checked == 29


def test_long_rows_and_columns_are_loaded_and_stored_in_128_bits(build):
    _, ptx, _ = build
    checked = 0
    for name, text in ptx.items():
        if not re.match(r"long_rows_kernel<|strided_kernel<\w+, [48], ", name):
            continue
        loads, stores = accesses(text, "ld"), accesses(text, "st")
        assert count(loads, r"ld\.global\.v4\.\w+") >= 2
        assert count(loads, r"ld\.(?:global\.)?(?!global|shared|v4).*") == count(loads, r"ld\.global\.nc\..*")
        assert count(stores, r"st\.global\.v4\.\w+") >= 2
        assert count(stores, r"st\.(?:global\.)?(?!global|shared|v4).*") == 0
        checked += 1
    assert checked == 16


def test_rows_with_outputs_are_loaded_and_stored_in_128_bits(build):
    """Where they lie so; else value by value, which is there too."""
    _, ptx, _ = build
    checked = 0
    for name, text in ptx.items():
        if not name.startswith("output_rows_kernel"):
            continue
        loads, stores = accesses(text, "ld"), accesses(text, "st")
        assert count(loads, r"ld\.global\.v4\.\w+") >= 4  # x and residual of both chunks that are kept
        assert count(stores, r"st\.global\.v4\.\w+") >= 2
        eight_bits = r"st\.global\.u32" if "<float>" in name else r"st\.global\.v2\.\w+"
        assert count(stores, eight_bits) >= 1
        assert not accesses(text, "ld.local")
        assert not accesses(text, "st.local")
        checked += 1
    assert checked == 3


@pytest.fixture(scope="module")
def machine_code(build):
    """``{kernel: code}`` of the kernels for rows in registers."""
    tool = sass.tool()
    if tool is None:
        pytest.skip("needs cuobjdump and nvdisasm: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    units = ("rows_float32", "rows_float16", "rows_bfloat16")
    found = [item for unit in units for item in sass.functions(tool, build[2][unit], f"sm_{PTX_OF}").items()]
    return {short_name(name): code for name, code in found if "11rows_kernel" in name}


def test_machine_code_loads_and_stores_128_bits(machine_code):
    assert len(machine_code) == 29
    for code in machine_code.values():
        assert re.search(r"LDG\.E\S*\.128", code)
        stores = re.findall(r"STG\.\S+", code)
        assert stores
        assert all(".128" in store for store in stores)


def head_of_128(machine_code, dtype, form):
    """What a warp issues for two passes of 512 bytes: each of 8 threads of a row has two of its chunks."""
    return sass.row_path(machine_code[f"rows_kernel<{dtype}, {dtype}, 2, false, {form}>"], chunks=2, exchanges=3)


@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
@pytest.mark.parametrize("form", [1, 2], ids=["gemma", "llama"])
def test_a_short_row_takes_few_instructions(machine_code, dtype, form):
    """At most 150 for a warp pass of 512 bytes. Without a limit on the issue of instructions, memory is the limit."""
    path = head_of_128(machine_code, dtype, form)
    names = [instruction.name for instruction in path]
    assert sum(name.startswith("SHFL") for name in names) == 3
    assert sum(name.startswith("F2FP") for name in names) >= 8  # two by two
    assert not [name for name in names if re.match(r"F2F\.", name)]  # one by one, slowly
    assert 50 <= len(path) / 2 <= 150


def main():
    """Write the table."""
    with tempfile.TemporaryDirectory() as folder:
        reports, _, _ = compiled(shutil.which("nvcc"), Path(folder))
    table = {
        f"sm_{architecture}": {name: registers(report) for name, report in sorted(kernels.items())}
        for architecture, kernels in reports.items()
    }
    TABLE.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
