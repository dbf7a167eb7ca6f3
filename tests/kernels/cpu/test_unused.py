"""No function that an instruction set defines is left unused, which Clang takes for an error and GCC passes over."""

import re
from collections import Counter

import pytest

from tests.support.native import ROOT, compiler, output_of

FOLDER = ROOT / "ops" / "cpu" / "isa"
COMPILERS = {
    "avx2": (("x86_64-linux-gnu-g++",), "-march=x86-64-v3"),
    "avx512": (("x86_64-linux-gnu-g++",), "-march=x86-64-v4"),
    "neon": (("aarch64-linux-gnu-g++",), "-march=armv8-a"),
    "portable": (("c++", "g++"), "-O3"),
}


def test_every_instruction_set_is_here():
    assert set(COMPILERS) == {path.stem for path in FOLDER.glob("*.cpp")}


@pytest.mark.parametrize("name", COMPILERS)
def test_every_function_of_an_instruction_set_is_used(name):
    names, flag = COMPILERS[name]
    source = FOLDER / f"{name}.cpp"
    defined = Counter(re.findall(r"^INLINE [^(;]*?(\w+)\(", source.read_text(), re.MULTILINE))
    assert defined or name == "portable"
    seen = Counter(re.findall(r"\w+", output_of(*compiler(names, ()), "-std=c++17", flag, "-E", "-P", source)))
    assert [function for function, count in defined.items() if seen[function] <= count] == []
