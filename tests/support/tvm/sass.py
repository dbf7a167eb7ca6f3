"""Machine code as ``cuobjdump`` prints it."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path


def tool():
    """``cuobjdump`` of the PATH, or of PyPI's nvidia-cuda-cuobjdump; None without either."""
    found = shutil.which("cuobjdump")
    spec = None if found else importlib.util.find_spec("nvidia")
    folders = [Path(f) for f in spec.submodule_search_locations] if spec else []
    return found or next((str(p) for f in folders for p in f.glob("*/bin/cuobjdump")), None)


def functions(cuobjdump, file):
    """``{name: code}`` of an object file."""
    done = subprocess.run([cuobjdump, "--dump-sass", str(file)], capture_output=True, text=True, check=True)
    parts = done.stdout.split("Function : ")[1:]
    return {part.split("\n")[0].strip(): part for part in parts}


def names(code):
    """The names of all instructions of one function, in order, with what stands behind a dot."""
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", code)
