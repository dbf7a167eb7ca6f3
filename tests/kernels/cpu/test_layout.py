"""The struct of the contract as ctypes has it lies in memory as a compiler lays out the header's."""

import ctypes
import subprocess

from benchmarks.gpu.contract import MAX_RANK, Params
from tests.support.native import ROOT, c_compiler, output_of

HEADER = ROOT / "ops" / "include" / "rms_norm.h"


def test_every_field_is_where_the_header_has_it(tmp_path):
    names = [name for name, _ in Params._fields_]
    lines = [
        f'printf("{name} %zu %zu\\n", offsetof(rms_norm_params, {name}), sizeof(((rms_norm_params*)0)->{name}));'
        for name in names
    ]
    lines += ['printf("%zu %d\\n", sizeof(rms_norm_params), RMS_NORM_MAX_RANK);']
    lines += ["#define PRINT(name, neutral, since) puts(#name);", "RMS_NORM_FLOAT_ATTRIBUTES(PRINT)"]
    source = tmp_path / "layout.c"
    source.write_text(f'#include <stddef.h>\n#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{\n')
    with source.open("a") as file:
        file.write("\n".join([*lines, "return 0;", "}", ""]))
    output_of(*c_compiler(), "-std=c11", "-Wall", "-Werror", source, "-o", tmp_path / "layout")
    done = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True)
    wanted = [f"{name} {getattr(Params, name).offset} {getattr(Params, name).size}" for name in names]
    floats = [name for name, kind in Params._fields_ if kind is ctypes.c_float]
    assert done.stdout.splitlines() == [*wanted, f"{ctypes.sizeof(Params)} {MAX_RANK}", *floats]
