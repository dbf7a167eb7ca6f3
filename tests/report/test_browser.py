"""Pages in a browser: nothing overlaps or leaves its place, narrow and wide, light and dark, and on paper."""

import pytest

from tests.support.browser import browser, measured

WIDTHS = (360, 1400)

pytestmark = pytest.mark.skipif(browser() is None, reason="there is no Chromium; Debian's package is called chromium")


def on_paper(page):
    """The page as it is printed."""
    return page.replace("@media print{", "@media all{")


@pytest.fixture(scope="module")
def cases(reports):
    pages = [reports.texts["full.html"], reports.texts["evil.html"]]
    return [(page, width) for page in pages for width in WIDTHS] + [(on_paper(page), 720) for page in pages[:1]]


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_overlaps(dark, cases, tmp_path):
    found = measured(cases, tmp_path, dark=dark)
    assert [one["width"] for one in found] == [width for _, width in cases]
    assert [one["faults"] for one in found] == [[]] * len(cases)
    assert all(one["texts"] > 80 for one in found)
    assert {one["page"] for one in found[:4]} == {"rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)"}


def test_the_measure_finds_what_is_wrong(cases, tmp_path):
    """Each fault is put into a page by hand."""
    page, width = cases[1]
    wrong = {
        "wider than the page": page.replace("<main>", '<main><div style="width:3000px">x</div>'),
        "overlap": page.replace("<h2", '<h2 style="margin-top:-3rem;padding:0"'),
        "text leaves its box": page.replace("svg text{font-size:12px", "svg text{font-size:30px"),
        "two boxes meet": page.replace("<rect x=", '<rect x="20" y="20" data-x='),
    }
    found = measured([(text, width) for text in wrong.values()], tmp_path)
    for fault, one in zip(wrong, found, strict=True):
        assert any(said.startswith(fault) for said in one["faults"]), (fault, one["faults"])
