"""Whether what lies in dist/ may be released.

    make release-check

Versions and changelog say the same, every file is there, each wheel is what its system needs, the documentation is
right, and what earlier releases promised holds: their files give the same results, and what other programs are built on
(the library's names, its struct, the operators' domain) has not changed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from make import PRODUCTS, ROOT, SOURCES

PROMISES = {
    "the wheels": ["tests/wheels"],
    "the documentation": ["tests/docs"],
    "files of earlier releases": ["tests/ort/test_for_ever.py", "tests/op/test_known_bodies.py"],
    "the library's names and struct": [
        *("tests/ort/test_library_file.py", "tests/ort/test_abi.py"),
        *("tests/kernels/cpu/test_layout.py", "tests/kernels/cpu/test_versions.py"),
    ],
    "the operators' domain": ["tests/ort/test_domain_versions.py", "tests/op"],
}


def _said(file: str, pattern: str, root: Path) -> str:
    found = re.search(pattern, (root / file).read_text(), re.MULTILINE)
    return found[1] if found else ""


def faults_of_versions(root: Path = ROOT) -> Iterator[str]:
    """What does not name the version that pyproject.toml has, in sentences."""
    version = _said("pyproject.toml", r'^version = "(.*)"$', root)
    if _said("rmsnorm_deploy/__init__.py", r'^__version__ = "(.*)"$', root) != version:
        yield f"rmsnorm_deploy/__init__.py has another version than {version}"
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", (root / "CHANGELOG.md").read_text(), re.M):
        yield f"CHANGELOG.md has no dated heading of {version}"
    unreleased = _said("CHANGELOG.md", r"^## \[Unreleased\]\n((?:(?!^## ).*\n)*)", root).strip()
    if unreleased:
        yield "CHANGELOG.md has lines that belong to no release"
    if not (root / "tests" / "data" / version).is_dir():
        yield f"tests/data has no files that {version} fused: python tests/data/make.py"


def faults_of_files(folder: Path, version: str) -> Iterator[str]:
    """What lacks in a folder of a release, and what does not belong there, in sentences."""
    start = f"rmsnorm_deploy-{version}"
    wanted = {f"{start}.tar.gz" if p == SOURCES else f"{start}-py3-none-{p}.whl" for p in PRODUCTS}
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    yield from (f"{name} lacks" for name in sorted(wanted - there))
    yield from (f"{name} does not belong to it" for name in sorted(there - wanted))


def main(arguments: list[str] | None = None) -> int:
    """Print every fault; the status is 1 where there is one."""
    parser = argparse.ArgumentParser(prog="python ops/wheels/release_check.py")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    options = parser.parse_args(arguments)
    version = _said("pyproject.toml", r'^version = "(.*)"$', ROOT)
    faults = [*faults_of_versions(), *faults_of_files(options.dist, version)]
    for what, paths in PROMISES.items():
        # a test that is left out has shown nothing
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rs", *paths], cwd=ROOT, capture_output=True, text=True, check=False
        )
        print(f"{what}: {done.stdout.strip().splitlines()[-1] if done.stdout.strip() else 'nothing was run'}")
        if done.returncode:
            faults.append(f"{what}: pytest {' '.join(paths)} fails")
        faults += [
            f"{what}: {line}" for line in done.stdout.splitlines() if line.startswith("SKIPPED") and "dist/" in line
        ]
    for fault in faults:
        print(f"FAULT: {fault}")
    print(f"{version}: {'may not be released' if faults else 'may be released'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
