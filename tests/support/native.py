"""Builds a copy of ops/ in a temporary folder, as it is or with a fault planted, and programs that go with it."""

import contextlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rmsnorm_deploy.errors import MissingEnvironment
from rmsnorm_deploy.run import library, toolchain
from tests.support.contract import instruction_sets, load

ROOT = Path(__file__).resolve().parents[2]


def output_of(*command):
    """What a command says, both streams; the test fails with that where the command does."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, command))}\n{done.stdout[-6000:]}")
    return done.stdout


def compiler(*which):
    """The head of a command line that compiles C++, as the package finds it; without a compiler the test is skipped."""
    try:
        return toolchain.compiler(*which)
    except MissingEnvironment as error:
        pytest.skip(str(error))


def c_compiler():
    """The same for C."""
    return compiler(("cc", "gcc", "clang"), ("CC",))


def needs_cmake():
    """Skip the test where cmake, or a compiler for it, is missing."""
    compiler()
    if not shutil.which("cmake"):
        pytest.skip("needs cmake; install it: apt-get install cmake")


def can_link(folder, *flags):
    """Whether the compiler makes a program that runs with these flags."""
    source = folder / "empty.cpp"
    source.write_text("int main() { return 0; }\n")
    made = subprocess.run([*compiler(), *flags, source, "-o", folder / "empty"], capture_output=True, check=False)
    return made.returncode == 0 and subprocess.run([folder / "empty"], capture_output=True, check=False).returncode == 0


def unoptimised(but="no source"):
    """What CMake puts before a compiler that shall not optimise, which takes most of the time and changes no result.

    ``but`` is how the path of a source ends that is optimised all the same.
    """
    return f'bash;-c;[[ "${{@: -1}}" == *"{but}" ]] && exec "$@" || exec "${{@/#-O3/-O0}}";compiler'


def launcher():
    """What CMake puts before the compiler: kernels that this machine cannot run are compiled without sanitizers.

    Those see only what runs, and to compile an instruction set for them takes more than a minute.
    """
    usable = library.instruction_sets(library.library_path())
    idle = [name for name in instruction_sets(load(library.library_path())) if name not in usable]
    of_them = f'[[ "${{@: -1}}" =~ /isa/({"|".join(idle)})\\.cpp$ ]]'
    return f'bash;-c;{of_them} && exec "${{@/#-fsanitize=*/-g0}}" || exec "$@";compiler'


class Build:
    """The libraries of one copy of the sources, built with one choice of sanitizers."""

    def __init__(self, folder, sanitize):
        needs_cmake()
        self.flags = [f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g"]
        if not can_link(folder, *self.flags):
            pytest.skip(f"this compiler lacks -fsanitize={sanitize}; with GCC, install libasan, libubsan and libtsan")
        self.sources, self.folder = folder / "ops", folder / "build"
        shutil.copytree(ROOT / "ops", self.sources)
        output_of(
            "cmake",
            "-S",
            self.sources,
            "-B",
            self.folder,
            f"-DRMSNORM_DEPLOY_SANITIZE={sanitize}",
            "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
            f"-DCMAKE_CXX_COMPILER={';'.join(compiler())}",
            f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher()}",
        )

    def make(self, *targets):
        """Bring targets up to date; for a library, its file is the answer."""
        output_of("cmake", "--build", self.folder, "--parallel", "2", "--target", *targets)
        return self.folder / f"lib{targets[0]}.so"

    def program(self, source, *more):
        """A program, built with the same sanitizers."""
        made = self.folder / source.stem
        command = [*compiler(), "-std=c++17", "-Wall", "-Wextra", "-O1", *self.flags, f"-I{self.sources}"]
        output_of(*command, source, *more, "-o", made, "-pthread", "-ldl")
        return made

    @contextlib.contextmanager
    def planted(self, file, pattern, replacement):
        """The sources with a fault in one place while the context is open; what is built then holds it."""
        path = self.sources / file
        text = path.read_text()
        faulty, count = re.subn(pattern, replacement, text, flags=re.DOTALL)
        if count != 1:
            pytest.fail(f"ops/{file} has {count} places for the fault {pattern!r}; say anew where it is to be planted")
        path.write_text(faulty)
        try:
            yield
        finally:
            path.write_text(text)
