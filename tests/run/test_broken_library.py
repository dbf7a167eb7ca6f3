"""Library files that are none, and variables that say nothing: a sentence, and never the end of the process."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort
import pytest

from rmsnorm_deploy.check import doctor
from rmsnorm_deploy.errors import MissingEnvironment
from rmsnorm_deploy.run import library, session
from rmsnorm_deploy.run.binary import offered, unloadable

ROOT = Path(__file__).resolve().parents[2]
MINE = library.library_path()
TRY = """
import onnxruntime, rmsnorm_deploy
from rmsnorm_deploy.check.doctor import examine
print(examine()["library"]["problem"])
try:
    rmsnorm_deploy.register(onnxruntime.SessionOptions(), override_builtin={override})
except rmsnorm_deploy.MissingEnvironment as error:
    print(error)
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="ELF files")


def said(override=False, **environment):
    """What `doctor` and `register` say in another process, which has to live on."""
    done = subprocess.run(
        [sys.executable, "-c", TRY.format(override=override)],
        env={**os.environ, **{k: str(v) for k, v in environment.items()}},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout


def elf(data, **changes):
    """The library with other values in its header: name=(offset, format, value)."""
    data = bytearray(data)
    for offset, form, value in changes.values():
        struct.pack_into(form, data, offset, value)
    return bytes(data)


def cut_off():
    data = MINE.read_bytes()
    for length in (10, 30, 64, 100, 4096, len(data) // 2, len(data) * 9 // 10, len(data) - 1):
        yield f"its first {length} bytes", data[:length], "is cut off"


def others():
    data = MINE.read_bytes()
    yield "nothing", b"", "is empty"
    yield "text", b"no library", "is not a library"
    yield "zeros", bytes(5000), "is not a library"
    yield "another machine", elf(data, machine=(18, "<H", 0xF3)), "another kind of processor (ELF machine 243)"
    yield "32 bits", elf(data, width=(4, "B", 1)), "32 bits"
    yield "the other order of bytes", elf(data, order=(5, "B", 2)), "another kind of processor"
    yield "an object file", elf(data, kind=(16, "<H", 1)), "an object file"
    yield "an unknown width", elf(data, width=(4, "B", 9)), "cut off or damaged"


@linux
@pytest.mark.parametrize(("data", "problem"), [pytest.param(*c[1:], id=c[0]) for c in [*cut_off(), *others()]])
def test_a_file_that_is_no_library(data, problem, tmp_path, monkeypatch):
    path = tmp_path / "lib.so"
    path.write_bytes(data)
    assert problem in unloadable(path)
    assert library.instruction_sets(path) == library.cuda_architectures(path) == ()
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(path))
    options = ort.SessionOptions()
    with pytest.raises(MissingEnvironment) as caught:
        session.register(options)
    assert f"the library {path} " in caught.value.message
    assert problem in caught.value.message
    assert library.LIBRARY_VARIABLE in caught.value.hint
    assert not session.is_registered(options)
    found = doctor.examine()
    assert not found["ready"]
    assert found["library"]["problem"] == caught.value.message
    assert found["advice"][0] == caught.value.hint


@linux
def test_the_installed_libraries_are_libraries():
    assert unloadable(MINE) == unloadable(library.library_path(override=True)) == ""
    assert unloadable(Path(sys.executable).resolve()) in ("", "is a program or an object file, not a library")


def test_the_process_lives_on(tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(MINE.read_bytes()[: MINE.stat().st_size // 2])
    text = said(RMSNORM_DEPLOY_LIBRARY=path)
    assert text.count(f"the library {path} is cut off: it has {MINE.stat().st_size // 2} of at least") == 2


def test_a_cut_off_library_of_the_overrides(tmp_path):
    mine, other = tmp_path / MINE.name, tmp_path / library.library_path(override=True).name
    mine.write_bytes(MINE.read_bytes())
    other.write_bytes(library.library_path(override=True).read_bytes()[:-100000])
    text = said(override=True, RMSNORM_DEPLOY_LIBRARY=mine)
    assert f"the library {other} is cut off" in text


def test_one_library_is_not_the_other(tmp_path):
    """They take the same call, so onnxruntime would take either."""
    override = library.library_path(override=True)
    text = said(RMSNORM_DEPLOY_LIBRARY=override)
    assert text.count(f"{override} is another library than {MINE.name}") == 2
    mine, other = tmp_path / MINE.name, tmp_path / override.name
    for path in (mine, other):
        path.write_bytes(MINE.read_bytes())
    assert f"{other} is another library than {override.name}" in said(override=True, RMSNORM_DEPLOY_LIBRARY=mine)


def test_a_library_of_somebody_else():
    import _ctypes

    path = Path(_ctypes.__file__).resolve()
    assert f"{path} is another library than {MINE.name}" in said(RMSNORM_DEPLOY_LIBRARY=path)


def test_a_folder_and_a_file_that_may_not_be_read(tmp_path):
    assert "which is not a file" in said(RMSNORM_DEPLOY_LIBRARY=tmp_path)
    if os.geteuid() == 0:
        return  # who may read everything
    path = tmp_path / "lib.so"
    path.write_bytes(MINE.read_bytes())
    path.chmod(0)
    assert f"the library {path} cannot be read" in said(RMSNORM_DEPLOY_LIBRARY=path)


# ----------------------------------------------------------------------------------------------------------------------
# Environment variables that the library reads


WRONG = {
    "RMSNORM_DEPLOY_STREAMING": ["lots", "-1", "1e6", "16M", "0x10", " 5", "5 ", "1.5", "+3", "9223372036854775808"],
    "RMSNORM_DEPLOY_ISA": ["abacus", "AVX2", "avx2 ", "portable,avx2"],
}
EACH = """
import os, sys, onnxruntime, rmsnorm_deploy
name, *values = sys.argv[1:]
for override in (False, True):
    for value in values:
        os.environ[name] = value
        try:
            rmsnorm_deploy.register(onnxruntime.SessionOptions(), override_builtin=override)
        except rmsnorm_deploy.MissingEnvironment as error:
            print(error.message)
"""


@pytest.mark.parametrize("name", WRONG)
def test_what_a_variable_cannot_mean_is_refused(name):
    done = subprocess.run(
        [sys.executable, "-c", EACH, name, *WRONG[name]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    sentences = done.stdout.splitlines()
    assert len(sentences) == 2 * len(WRONG[name])
    for wrong, sentence in zip(2 * WRONG[name], sentences, strict=True):
        assert f"{name} is '{wrong}', which " in sentence


@pytest.mark.parametrize("right", ["", "0", "9223372036854775807"])
def test_a_threshold_is_taken(right):
    assert said(override=True, RMSNORM_DEPLOY_STREAMING=right).split() == []


def test_the_library_of_overrides_reads_them_too(tmp_path):
    """It is another file, with a memory of its own."""
    code = (
        "import os, onnxruntime, rmsnorm_deploy\n"
        "rmsnorm_deploy.register(onnxruntime.SessionOptions())\n"
        "os.environ['RMSNORM_DEPLOY_STREAMING'] = 'lots'\n"
        "rmsnorm_deploy.register(onnxruntime.SessionOptions(), override_builtin=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "librmsnorm_deploy_override.so: " in done.stderr
    assert "RMSNORM_DEPLOY_STREAMING is 'lots'" in done.stderr


@linux
def test_what_a_library_offers_is_read_from_its_tables(tmp_path):
    data = MINE.read_bytes()
    machine, names = offered(MINE)
    assert machine == struct.unpack_from("<H", data, 18)[0]
    assert b"RegisterCustomOps" in names
    assert b"memcpy" not in names  # another library's, though the name is in the file
    for what, damaged in (("cut", data[: len(data) // 2]), ("empty", b""), ("text", b"x" * 200)):
        (tmp_path / what).write_bytes(damaged)
        assert not (offered(tmp_path / what) or (0, ()))[1]
