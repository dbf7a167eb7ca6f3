"""The wheels in dist/, each as its system would look at it. ``make wheels`` makes them; without them nothing is tested.

What is looked at: names and tags, sizes, for which processor and for how old a system each library is, what it needs,
and that it offers the contract and onnxruntime's entry and nothing else.
"""

import importlib.util
import platform as host
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rmsnorm_deploy.run.library import instruction_sets, library_path
from tests.support.exported import EXPORTED

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
MOST_BYTES = 3_000_000
PLATFORMS = {
    "manylinux2014_x86_64": "X86_64",
    "manylinux2014_aarch64": "AARCH64",
    "win_amd64": "AMD64",
    "win_arm64": "ARM64",
    "macosx_11_0_arm64": "ARM64",
    "macosx_11_0_x86_64": "X86_64",
}
"""What each is built for, and the name of its processor in files of its kind."""
LINUX, WINDOWS, MACOS = ([p for p in PLATFORMS if p.startswith(start)] for start in ("manylinux", "win", "macosx"))
NAMES = ("rmsnorm_deploy", "rmsnorm_deploy_override")
OF_WINDOWS = ("api-ms-win-crt-", "kernel32.dll")


def wheel_for(platform):
    found = sorted(DIST.glob(f"rmsnorm_deploy-*-py3-none-{platform}.whl"))
    if not found:
        pytest.skip(f"dist/ has no wheel for {platform}: make wheels")
    (one,) = found
    return one


def file_name(platform, name):
    return f"rmsnorm_deploy/lib/{f'{name}.dll' if platform in WINDOWS else f'lib{name}.so'}"


@pytest.fixture(scope="module")
def library():
    """A library of a wheel, as lief reads it."""
    lief = pytest.importorskip("lief", reason="needs lief, of the extra dev")

    def parsed(platform, name):
        with zipfile.ZipFile(wheel_for(platform)) as file:
            return lief.parse(list(file.read(file_name(platform, name))))

    return parsed


def exported(name):
    return EXPORTED if name == "rmsnorm_deploy" else {"RegisterCustomOps"}


@pytest.mark.parametrize("platform", [*PLATFORMS, "any"])
def test_a_wheel_says_what_it_is(platform):
    path = wheel_for(platform)
    assert path.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(path) as file:
        names = file.namelist()
        (info,) = (file.read(n).decode() for n in names if n.endswith(".dist-info/WHEEL"))
        (said,) = (file.read(n).decode() for n in names if n.endswith(".dist-info/METADATA"))
    assert f"Tag: py3-none-{platform}" in info.splitlines()
    assert f"Root-Is-Purelib: {'true' if platform == 'any' else 'false'}" in info.splitlines()
    assert "Requires-Python: >=3.10" in said.splitlines()
    wanted = [] if platform == "any" else [file_name(platform, name) for name in NAMES]
    assert sorted(n for n in names if n.startswith("rmsnorm_deploy/lib/")) == sorted(wanted)
    assert {n.split("/")[0] for n in names} == {"rmsnorm_deploy", info_folder(path)}
    assert "rmsnorm_deploy/py.typed" in names


def info_folder(path):
    return f"{'-'.join(path.name.split('-')[:2])}.dist-info"


def test_every_wheel_holds_the_same_modules():
    def modules(platform):
        with zipfile.ZipFile(wheel_for(platform)) as file:
            return {i.filename: i.CRC for i in file.infolist() if i.filename.startswith("rmsnorm_deploy/")}

    pure = modules("any")
    others = [p for p in PLATFORMS if list(DIST.glob(f"*-{p}.whl"))]
    assert others, "dist/ has only the wheel without a library: make wheels"
    for platform in others:
        assert {n: c for n, c in modules(platform).items() if "/lib/" not in n} == pure


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("platform", LINUX)
def test_a_library_for_linux(platform, name, library):
    file = library(platform, name)
    assert file.header.machine_type.name == PLATFORMS[platform]
    assert {str(s.name) for s in file.exported_symbols} == exported(name)
    assert {re.split("[.-]", n)[0] for n in file.libraries} <= {"libc", "libm", "libpthread", "libdl", "ld"}
    versions = {aux.name for need in file.symbols_version_requirement for aux in need.get_auxiliary_symbols()}
    glibc = [tuple(map(int, v.removeprefix("GLIBC_").split("."))) for v in versions if v != "GLIBC_PRIVATE"]
    assert versions, "it asks for no version of glibc, so nothing was looked at"
    assert max(glibc) <= (2, 17)
    entries = {e.tag.name for e in file.dynamic_entries}
    assert not entries & {"RPATH", "RUNPATH"}
    assert not [s for s in file.sections if s.name.startswith(".debug")]


def test_it_finds_the_instruction_sets_that_a_library_built_here_finds(tmp_path):
    """A build that cannot tell the processor runs the slowest kernels, and nothing else fails."""
    platform = f"manylinux2014_{host.machine()}"
    if platform not in LINUX:
        pytest.skip("needs Linux on x86-64 or 64-bit ARM")
    with zipfile.ZipFile(wheel_for(platform)) as file:
        path = Path(file.extract(file_name(platform, "rmsnorm_deploy"), tmp_path))
    found = instruction_sets(path)
    assert found == instruction_sets(library_path())
    assert "portable" in found


@pytest.mark.parametrize("platform", LINUX)
def test_auditwheel_agrees(platform):
    path = wheel_for(platform)
    if importlib.util.find_spec("auditwheel") is None:
        pytest.skip("needs auditwheel, of the extra dev")
    done = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", path], capture_output=True, text=True, check=True
    )
    arch = platform.removeprefix("manylinux2014_")
    assert f'"manylinux_2_17_{arch}"' in " ".join(done.stdout.split()), done.stdout


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("platform", WINDOWS)
def test_a_library_for_windows(platform, name, library):
    file = library(platform, name)
    assert file.header.machine.name == PLATFORMS[platform]
    assert {e.name for e in file.get_export().entries} == exported(name)
    needed = {i.name.lower() for i in file.imports}
    assert needed, "it needs nothing, so nothing was looked at"
    assert [n for n in needed if not n.startswith(OF_WINDOWS)] == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("platform", MACOS)
def test_a_library_for_macos(platform, name, library):
    file = library(platform, name)
    assert file.header.cpu_type.name == PLATFORMS[platform]
    # zig makes no bundles; a program loads it by its path all the same
    assert file.header.file_type.name == "DYLIB"
    # zig's linker can hide neither the file's own header nor operators new and delete, which call malloc and free
    offered = {s.name.removeprefix("_") for s in file.exported_symbols}
    others = offered - exported(name)
    assert exported(name) <= offered
    assert {n for n in others if not re.match("_Z(n|d)[aw]|_Zd[al]Pv", n)} == {"_mh_dylib_header", "__dso_handle"}
    # its own name, which says no path, and the system's library
    assert {lib.name for lib in file.libraries} == {f"lib{name}.so", "/usr/lib/libSystem.B.dylib"}
    assert file.build_version.platform.name == "MACOS"
    assert tuple(file.build_version.minos[:2]) <= (11, 0)
    assert not file.has_rpath
    # Macs with ARM processors run no code that nobody has signed
    assert file.has_code_signature or platform.endswith("x86_64")
