"""The built file: what it exports, what it needs, and how it greets a runtime that is too old or calls it twice."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rmsnorm_deploy.run.library import library_path
from tests.support.exported import EXPORTED
from tests.support.native import c_compiler

ROOT = Path(__file__).resolve().parents[2]


def tool(name):
    if sys.platform != "linux" or not shutil.which(name):
        pytest.skip(f"needs Linux and {name}")
    return name


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def exported_by(path):
    listing = output_of(tool("nm"), "-D", "--defined-only", "-f", "posix", path)
    return {line.split()[0] for line in listing.splitlines()}


def test_only_the_contract_is_exported():
    assert exported_by(library_path()) == EXPORTED
    assert exported_by(library_path(override=True)) == {"RegisterCustomOps"}


def test_the_headers_declare_what_is_exported():
    headers = "".join(path.read_text() for path in sorted((ROOT / "ops" / "include").glob("*.h")))
    declared = set(re.findall(r"^RMS_NORM_EXPORT .*?(\w+)\(", headers, re.MULTILINE))
    assert declared | {"RegisterCustomOps"} == EXPORTED


def test_the_library_says_whether_it_has_cuda_kernels():
    library = ctypes.CDLL(str(library_path()))
    library.rmsnorm_deploy_cuda_architectures.restype = ctypes.c_char_p
    library.rmsnorm_deploy_cuda_error_text.restype = ctypes.c_char_p
    architectures = library.rmsnorm_deploy_cuda_architectures().decode()
    code = library.rmsnorm_deploy_cuda_run(None, None)
    text = library.rmsnorm_deploy_cuda_error_text(code).decode()
    if architectures:
        assert re.fullmatch(r"\d+(-real)?( \d+(-real)?)*", architectures)
        assert "a pointer is missing" in text
        assert library.rmsnorm_deploy_cuda_version() >= 11080
    else:
        assert "built without CUDA" in text
        assert library.rmsnorm_deploy_cuda_version() == 0


@pytest.mark.parametrize("override", [False, True])
def test_nothing_but_the_system_is_needed(override):
    listing = output_of(tool("readelf"), "-d", library_path(override=override))
    needed = set(re.findall(r"NEEDED.*\[(.*?)\]", listing))
    assert {re.split(r"[.-]", name)[0] for name in needed} <= {"libc", "libm", "ld", "libpthread", "libdl"}
    assert not re.search(r"RPATH|RUNPATH", listing)


@pytest.mark.parametrize("override", [False, True])
def test_the_library_stays_when_onnxruntime_unloads_it(override):
    """What it makes once for a process would else be made again for every session, and lost each time."""
    assert "NODELETE" in output_of(tool("readelf"), "-d", library_path(override=override))


@pytest.mark.parametrize("override", [False, True])
def test_no_symbol_of_onnxruntime_is_wanted(override):
    listing = output_of(tool("nm"), "-D", "--undefined-only", library_path(override=override))
    assert "Ort" not in listing


def test_the_header_is_plain_c(tmp_path):
    source = tmp_path / "use.c"
    source.write_text(
        '#include "rms_norm_gated.h"\n'
        "int main(void) {\n"
        "  rms_norm_params p; rms_norm_gate g; p.version = g.version = 0;\n"
        "  return rmsnorm_deploy_cpu_run(&p) + rmsnorm_deploy_cpu_run_gated(&p, &g);\n"
        "}\n"
    )
    include = ROOT / "ops" / "include"
    subprocess.run(
        [
            *c_compiler(),
            "-std=c99",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            f"-I{include}",
            "-c",
            source,
            "-o",
            os.devnull,
        ],
        check=True,
    )


class ApiBase(ctypes.Structure):
    """What onnxruntime hands to RegisterCustomOps first."""

    _fields_ = (
        ("get_api", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)),
        ("version_string", ctypes.CFUNCTYPE(ctypes.c_void_p)),  # a string that stays
    )


@pytest.mark.parametrize("override", [False, True])
@pytest.mark.parametrize("version", [b"1.19.2", b"1.8.0", b"0.5.0", b"unheard-of"])
def test_an_older_onnxruntime_gets_a_status_and_no_call_that_it_lacks(version, override):
    messages, asked = [], []

    def create_status(code, text):
        messages.append((code, text.decode()))
        return 1234

    create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(create_status)
    table = (ctypes.c_void_p * 300)(ctypes.cast(create, ctypes.c_void_p))

    def get_api(number):
        asked.append(number)
        return ctypes.addressof(table)

    text_of_version = ctypes.create_string_buffer(version)
    base = ApiBase(ApiBase._fields_[0][1](get_api), ApiBase._fields_[1][1](lambda: ctypes.addressof(text_of_version)))
    library = ctypes.CDLL(str(library_path(override=override)))
    library.RegisterCustomOps.restype = ctypes.c_void_p
    assert library.RegisterCustomOps(None, ctypes.byref(base)) == 1234
    assert asked == [1]
    ((code, text),) = messages
    assert code == 9
    assert text == f"rmsnorm_deploy needs onnxruntime 1.20 or newer, and this is {version.decode()}"
