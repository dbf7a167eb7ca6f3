"""The wheels of a release, one for each machine that runs onnxruntime, made on one of them by zig.

    make wheels                                    # all of them and the source distribution, in dist/
    python ops/wheels/make.py win_amd64 any        # some, by the last part of their names

Needs the packages ``build``, ``cmake``, ``ninja``, ``scikit-build-core`` and ``ziglang``; ``make wheels`` gets them. What
a system calls its libraries, and how they are compiled, is in ../CMakeLists.txt; how zig is called, in zig.cmake.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import zipfile
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


def build(platform: str, folder: Path) -> Path:
    """One wheel, by the build that makes every other one: ``pip wheel`` of this project.

    Raises:
        SystemExit: it could not be built, or is not what its name says.
    """
    settings = {"wheel.cmake": "false", "wheel.platlib": "false"}
    environment = {**os.environ, "RMSNORM_DEPLOY_NEEDS_KERNELS": "1", "CMAKE_GENERATOR": "Ninja"}
    if platform != PURE:
        # one folder for each, so that the next build compiles only what has changed
        settings = {
            "build-dir": str(ROOT / "build" / "wheels" / platform),
            "install.strip": "false",
            "cmake.define.CMAKE_TOOLCHAIN_FILE": str(ROOT / "ops" / "wheels" / "zig.cmake"),
            "cmake.define.RMSNORM_DEPLOY_ZIG": zig(),
            "cmake.define.RMSNORM_DEPLOY_ZIG_TARGET": TARGETS[platform],
            "cmake.define.RMSNORM_DEPLOY_WERROR": "ON",
            "cmake.define.RMSNORM_DEPLOY_CUDA": "OFF",
        }
        environment["_PYTHON_HOST_PLATFORM"] = platform
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    command += [f"--config-setting={name}={value}" for name, value in settings.items()]
    log = ROOT / "build" / "wheels" / f"{platform}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"*-{platform}.whl"):
        old.unlink()
    with log.open("w") as file:
        failed = subprocess.run(
            [*command, str(ROOT)], env=environment, stdout=file, stderr=file, check=False
        ).returncode
    made = list(folder.glob(f"*-py3-none-{platform}.whl"))
    if failed or len(made) != 1:
        raise SystemExit(f"the wheel for {platform} was not made; {log} says why")
    return checked(made[0], platform)


def checked(wheel: Path, platform: str) -> Path:
    """A wheel that has both libraries, or none, and a size that one can load.

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
    parser.add_argument("platforms", nargs="*", metavar="PLATFORM", help="of " + ", ".join((*TARGETS, PURE)))
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder for them")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if unknown := sorted({*options.platforms} - {*TARGETS, PURE}):
        parser.error(f"no such platform: {', '.join(unknown)}")
    print("| wheel | bytes | seconds |\n|---|---|---|")
    for platform in options.platforms or (*TARGETS, PURE):
        begun = time.monotonic()
        wheel = build(platform, options.out)
        print(f"| {wheel.name} | {wheel.stat().st_size} | {time.monotonic() - begun:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
