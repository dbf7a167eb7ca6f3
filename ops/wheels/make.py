"""The wheels of a release, one for each machine that runs onnxruntime, made on one of them by zig.

    make wheels                                    # all of them and the source distribution, in dist/
    make wheels WHEELS='win_amd64 any'             # some, by the last part of their names

As many are made side by side as there are processors: zig compiles a system's C and C++ libraries one file at a time,
once for each system, and keeps them (``zig env`` says where).

Needs the packages ``build``, ``cmake``, ``ninja``, ``scikit-build-core`` and ``ziglang``; ``make wheels`` gets them.
What a system calls its libraries, and how they are compiled, is in ../CMakeLists.txt; how zig is called, in zig.cmake.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {
    "manylinux2014_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux2014_aarch64": "aarch64-linux-gnu.2.17",
    "win_amd64": "x86_64-windows-gnu",
    "win_arm64": "aarch64-windows-gnu",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
}
"""What zig calls each platform, by the name that a wheel has for it."""
PURE = "any"
"""The wheel without a library: every Python takes it where none of the others fits."""
SOURCES = "sdist"
PRODUCTS = (*TARGETS, PURE, SOURCES)
MOST_BYTES = 3_000_000
"""Of a wheel without kernels for GPUs."""


def zig() -> str:
    """The compiler that the package ziglang brings.

    Raises:
        SystemExit: it is not installed.
    """
    try:
        import ziglang
    except ImportError:
        raise SystemExit("ziglang is not installed; make wheels installs it") from None
    return str(Path(next(iter(ziglang.__path__))) / ("zig.exe" if sys.platform == "win32" else "zig"))


def build(product: str, folder: Path) -> Path:
    """One of :data:`PRODUCTS`, by the build backend that ``pip install .`` uses.

    Raises:
        SystemExit: it could not be built, or is not what its name says.
    """
    kind, ending, settings = "--wheel", f"-py3-none-{product}.whl", {}
    environment = {**os.environ, "RMSNORM_DEPLOY_NEEDS_KERNELS": "1", "CMAKE_GENERATOR": "Ninja"}
    if product == SOURCES:
        kind, ending = "--sdist", ".tar.gz"
    elif product == PURE:
        environment["RMSNORM_DEPLOY_PURE"] = "1"
    else:
        settings = {
            # one folder for each, so that the next build compiles only what has changed
            "build-dir": str(ROOT / "build" / "wheels" / product),
            "install.strip": "false",
            "cmake.define.CMAKE_TOOLCHAIN_FILE": str(ROOT / "ops" / "wheels" / "zig.cmake"),
            "cmake.define.RMSNORM_DEPLOY_ZIG": zig(),
            "cmake.define.RMSNORM_DEPLOY_ZIG_TARGET": TARGETS[product],
            "cmake.define.RMSNORM_DEPLOY_WERROR": "ON",
            "cmake.define.RMSNORM_DEPLOY_CUDA": "OFF",
        }
        environment["_PYTHON_HOST_PLATFORM"] = product  # the tag of the wheel
    command = [sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", str(folder)]
    command += [f"--config-setting={name}={value}" for name, value in settings.items()]
    log = ROOT / "build" / "wheels" / f"{product}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"*{ending}"):
        old.unlink()
    with log.open("w") as file:
        done = subprocess.run([*command, str(ROOT)], env=environment, stdout=file, stderr=file, check=False)
    made = list(folder.glob(f"*{ending}"))
    if done.returncode or len(made) != 1:
        raise SystemExit(f"{product} was not made; {log} says why")
    return made[0] if product == SOURCES else checked(made[0], product)


def checked(wheel: Path, platform: str) -> Path:
    """A wheel that has both libraries, or none, and is not too large.

    Raises:
        SystemExit: it has not.
    """
    with zipfile.ZipFile(wheel) as file:
        libraries = [name for name in file.namelist() if name.startswith("rmsnorm_deploy/lib/")]
    if len(libraries) != (0 if platform == PURE else 2):
        raise SystemExit(f"{wheel.name} has the libraries {libraries}")
    if wheel.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{wheel.name} has {wheel.stat().st_size} bytes, more than {MOST_BYTES}")
    return wheel


def main(arguments: list[str] | None = None) -> int:
    """Make them; a table of them goes to stdout."""
    parser = argparse.ArgumentParser(prog="python ops/wheels/make.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("platforms", nargs="*", metavar="PLATFORM", help="of " + ", ".join(PRODUCTS))
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder for them")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if unknown := sorted({*options.platforms} - {*PRODUCTS}):
        parser.error(f"no such platform: {', '.join(unknown)}")
    print("| file | bytes | made after, in seconds |\n|---|---|---|", flush=True)
    begun = time.monotonic()

    def row(product: str) -> str:
        made = build(product, options.out)
        return f"| {made.name} | {made.stat().st_size} | {time.monotonic() - begun:.0f} |"

    with ThreadPoolExecutor(os.cpu_count()) as side_by_side:
        for done in side_by_side.map(row, options.platforms or PRODUCTS):
            print(done, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
