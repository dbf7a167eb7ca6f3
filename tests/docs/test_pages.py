"""The documentation: its links, its way to every page, what is made from the code, and the site."""

import re
import subprocess

import pytest

import rmsnorm_deploy
from tests.docs import reference
from tests.docs.charts import CHARTS, drawn, rows
from tests.docs.pages import INDEX, OTHERS, PAGES, README, ROOT, anchors, links, named, resolved


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=named)
def test_every_link_leads_somewhere(page):
    for target in links(page):
        if target.startswith(("https://", "mailto:")):
            continue
        assert "://" not in target, target
        file = resolved(page, target)
        assert file.exists(), f"{target}: no such file"
        if "#" in target and file.suffix == ".md":
            assert target.partition("#")[2] in anchors(file), f"{target}: no such heading"


@pytest.mark.parametrize("start", [README, INDEX], ids=named)
def test_every_page_is_at_most_two_clicks_away(start):
    near = {start}
    for _ in range(2):
        near |= {resolved(p, t) for p in near if p.suffix == ".md" for t in links(p) if "://" not in t}
    far = [named(page) for page in PAGES if page not in {*near, README}]
    assert not far, f"two clicks from {named(start)} do not lead to {far}: add a question to docs/index.md"


def test_the_site_has_every_page():
    text = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r"[\w/-]+\.md", text[text.index("\nnav:") :])
    assert sorted(listed) == sorted(named(p).removeprefix("docs/") for p in PAGES if p != README)


def test_the_readme_fits_on_a_screen():
    lines = README.read_text().splitlines()
    assert len(lines) <= 60, "the rest has a page of its own in docs/"
    assert "1 to 6 %" in README.read_text(), "what a whole model gains is said at once"


def test_the_readme_says_what_becomes_of_the_samples():
    shown = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", README.read_text(), re.MULTILINE)
    models = sorted((ROOT / "samples" / "models").glob("*.onnx"))
    assert [name for name, *_ in shown] == [path.stem for path in models]
    for (_, *numbers), path in zip(shown, models, strict=True):
        _, report = rmsnorm_deploy.fuse(path)
        norms = len(report.fused) + len(report.near_misses)
        nodes = [sum(ops.values()) for ops in (report.ops_before, report.ops_after)]
        assert [norms, len(report.fused), *nodes] == [int(n) for n in numbers], path.stem


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_that_is_made_from_the_code_is_up_to_date(name):
    made = reference.PAGES[name]()
    assert (reference.FOLDER / name).read_text() == made, "run: python -m tests.docs.reference"


@pytest.mark.parametrize("chart", CHARTS, ids=lambda c: c.image)
def test_a_chart_shows_the_numbers_of_its_table(chart):
    shown = (ROOT / chart.image).read_text()
    assert shown == drawn(chart), "run: python -m tests.docs.reference"
    numbers = [f">{number:g}<" for _, numbers in rows(chart) for number in numbers]
    assert numbers
    assert all(number in shown for number in numbers)
    image = f"](../images/{chart.image.rpartition('/')[2]})"
    assert image in (ROOT / chart.page).read_text(), "the page shows its chart"


def test_every_error_and_no_other_has_an_exit_code():
    from rmsnorm_deploy import errors

    classes = {c for c in vars(errors).values() if isinstance(c, type) and c.__module__ == errors.__name__}
    assert {c for c in reference.EXIT_CODES if isinstance(c, type)} == classes - {errors.RmsNormDeployError}
    numbers = [int(number) for number, _ in reference.exit_codes()]
    assert numbers == sorted(set(numbers))


def test_the_site_is_built(tmp_path):
    """Where mkdocs is installed: ``make docs`` puts it there."""
    mkdocs = ROOT / ".venvs" / "docs" / "bin" / "mkdocs"
    if not mkdocs.exists():
        pytest.skip("no mkdocs; make it with: make docs")
    done = subprocess.run(
        [mkdocs, "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "reference" / "command-line.html").stat().st_size > 10_000
