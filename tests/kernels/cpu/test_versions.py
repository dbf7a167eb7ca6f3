"""A caller that was compiled with an older version of the contract goes on working when an attribute is added."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.support.native import ROOT, can_link, compiler, output_of

HEADER = ROOT / "ops" / "include" / "rms_norm.h"


def test_a_struct_of_the_version_before_is_read(tmp_path):
    for folder in ("include", "contract"):
        shutil.copytree(ROOT / "ops" / folder, tmp_path / folder)
    text = HEADER.read_text()
    version = int(re.search(r"#define RMS_NORM_PARAMS_VERSION (\d+)", text)[1])
    text = text.replace(f"PARAMS_VERSION {version}", f"PARAMS_VERSION {version + 1}")
    last = re.findall(r"#define RMS_NORM_FLOAT_ATTRIBUTES_\d+(?:.*\\\n)*.*", text)[-1]
    text = text.replace(f"{last}\n", f"{last} \\\n  ATTRIBUTE(added, 2.5f, {version + 1})\n")
    (tmp_path / "include" / HEADER.name).write_text(text)
    sources = [Path(__file__).with_name("versions.cpp"), *sorted((tmp_path / "contract").glob("*.cpp"))]
    sanitize = ["-fsanitize=address", "-fno-omit-frame-pointer"]
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}"]
    if can_link(tmp_path, *sanitize):
        flags += sanitize
    output_of(*compiler(), *flags, *sources, "-o", tmp_path / "versions")
    done = subprocess.run([tmp_path / "versions"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
