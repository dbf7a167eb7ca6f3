"""Each recipe of CONTRIBUTING.md applies, touches no more files than it may, and passes its own tests."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rmsnorm_deploy.run.library import library_path
from tests.support.native import unoptimised

ROOT = Path(__file__).parents[2]
MOST = {
    "a new spelling": 1,
    "a new kind of GPU for TVM": 1,
    "a new instruction set": 1,
    "a new form of output": 1,
    "a new command": 1,
    "a new attribute": 9,
    "a new operator": 14,
}
"""How many files of the package and of ops/ a recipe may touch, beside one line in the build."""
BUILD = "ops/CMakeLists.txt"
# Undoes the editable installation: the package is imported from PYTHONPATH, in processes of the tests' own, too.
CUSTOMIZE = "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'ScikitBuild' not in type(f).__name__]\n"
PYTEST = """
import pathlib, sys, pytest, rmsnorm_deploy
assert pathlib.Path(rmsnorm_deploy.__file__).is_relative_to(pathlib.Path.cwd()), rmsnorm_deploy.__file__
sys.exit(pytest.main(["-p", "no:cacheprovider", *sys.argv[1:]]))
"""
LAUNCHER = f"-DCMAKE_CXX_COMPILER_LAUNCHER={unoptimised()}"


def sections():
    """Each recipe's title and text."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return re.findall(r"^## Recipe: (.*?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)


def diff_of(text):
    """A recipe's change: in its section, or in the file that the section links to."""
    if shown := re.search(r"```diff\n(.*?)```", text, re.DOTALL):
        return shown[1]
    linked = re.search(r"docs/recipes/\w+\.diff", text)
    assert linked, "a recipe shows a diff, or links to one in docs/recipes/"
    return (ROOT / linked[0]).read_text()


def output_of(command, folder, **more):
    return subprocess.run(
        [*map(str, command)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **more,
    )


class Copy:
    """The checkout's files in a folder of their own."""

    def __init__(self, folder, diff):
        self.folder, self.diff = folder / "checkout", folder / "recipe.diff"
        self.diff.write_text(diff)
        listed = output_of(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT)
        if listed.returncode:
            pytest.skip("not a checkout")
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).exists():  # else it is deleted, and that is not committed
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.folder / name)
        (folder / "sitecustomize.py").write_text(CUSTOMIZE)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
            "PYTHONPATH": os.pathsep.join(map(str, (folder, self.folder))),
            "RMSNORM_DEPLOY_LIBRARY": str(library_path()),
        }

    def apply(self, *options):
        """Apply the diff, or the part of it that the options choose; its lines may have moved."""
        environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(self.folder.parent)}
        done = output_of(["git", "apply", "--recount", "-C1", *options, self.diff], self.folder, env=environment)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def touched(self):
        """Files of the diff, each with how many lines it adds and removes."""
        rows = [line.split("\t") for line in self.apply("--numstat").splitlines()]
        return {name: int(added) + int(removed) for added, removed, name in rows}

    def build(self):
        """The library of the changed sources, for the tests to use."""
        made = self.folder / "build" / "recipe"
        for command in (
            ["cmake", "-S", "ops", "-B", made, "-DRMSNORM_DEPLOY_CUDA=OFF", "-DRMSNORM_DEPLOY_WERROR=ON", LAUNCHER],
            ["cmake", "--build", made, "--parallel", "2"],
        ):
            done = output_of(command, self.folder)
            assert done.returncode == 0, done.stdout[-6000:]
        self.environment["RMSNORM_DEPLOY_LIBRARY"] = str(made / "librmsnorm_deploy.so")

    def pytest(self, arguments):
        return output_of([sys.executable, "-c", PYTEST, *arguments], self.folder, env=self.environment)


def test_every_recipe_is_tried():
    assert sorted(title for title, _ in sections()) == sorted(MOST)


@pytest.mark.parametrize("title", MOST)
def test_a_recipe_applies_touches_few_files_and_passes_its_tests(title, tmp_path):
    text = dict(sections())[title]
    diff = diff_of(text)
    copy = Copy(tmp_path, diff)
    touched = copy.touched()
    assert len(touched) == len(re.findall(r"^\+\+\+ ", diff, re.MULTILINE)), "a file's part starts with diff --git"
    product = {name for name in touched if name.startswith(("rmsnorm_deploy/", "ops/"))} - {BUILD}
    assert 1 <= len(product) <= MOST[title], sorted(product)
    assert touched.get(BUILD, 0) <= 1, "more than a line in the build"

    tests = [shlex.split(line) for line in re.findall(r"^\.venv/bin/pytest (.*)", text, re.MULTILINE)]
    tests = tests or [[name for name in touched if re.search(r"^tests/.*/test_\w+\.py$", name)]]
    assert all(tests), "a recipe adds a test file, or shows how to run its tests"
    copy.apply("--include=tests/*")
    for arguments in tests:
        done = copy.pytest([*arguments, "--exitfirst"])
        assert done.returncode in (1, 2), f"without the change the tests have to fail\n{done.stdout[-6000:]}"
    copy.apply("--exclude=tests/*")
    if any(name.startswith("ops/") for name in touched):
        copy.build()
    for arguments in tests:
        done = copy.pytest(arguments)
        assert done.returncode == 0, done.stdout[-6000:]
        assert " passed" in done.stdout
