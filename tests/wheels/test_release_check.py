"""What keeps a release back is found and said."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "ops" / "wheels"))
release_check = pytest.importorskip("release_check")
sys.path.pop(0)


@pytest.fixture
def ready(tmp_path):
    """A release with nothing wrong."""
    (tmp_path / "rmsnorm_deploy").mkdir()
    (tmp_path / "tests" / "data" / "1.2.0").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "rmsnorm_deploy" / "__init__.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [1.2.0] - 2026-01-31\n\n* Something.\n")
    return tmp_path


def test_nothing_is_wrong(ready):
    assert list(release_check.faults_of_versions(ready)) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("rmsnorm_deploy/__init__.py", "1.2.0", "1.1.0", "another version than 1.2.0"),
        ("CHANGELOG.md", "[1.2.0]", "[1.1.0]", "no dated heading"),
        ("CHANGELOG.md", " - 2026-01-31", "", "no dated heading"),
        ("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n* New.\n", "belong to no release"),
        ("pyproject.toml", "1.2.0", "1.3.0", "tests/data has no files"),
    ],
)
def test_a_version_that_differs_is_said(ready, file, old, new, said):
    path = ready / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert any(said in fault for fault in release_check.faults_of_versions(ready))


def test_what_lacks_and_what_is_left_over_is_said(tmp_path):
    for product in release_check.PRODUCTS[1:-1]:
        (tmp_path / f"rmsnorm_deploy-1.2.0-py3-none-{product}.whl").touch()
    (tmp_path / "rmsnorm_deploy-1.2.0.tar.gz").touch()
    first = f"rmsnorm_deploy-1.2.0-py3-none-{release_check.PRODUCTS[0]}.whl"
    assert list(release_check.faults_of_files(tmp_path, "1.2.0")) == [f"{first} lacks"]
    (tmp_path / first).touch()
    assert list(release_check.faults_of_files(tmp_path, "1.2.0")) == []
    (tmp_path / "rmsnorm_deploy-1.1.0.tar.gz").touch()
    assert list(release_check.faults_of_files(tmp_path, "1.2.0")) == [
        "rmsnorm_deploy-1.1.0.tar.gz does not belong to it"
    ]
