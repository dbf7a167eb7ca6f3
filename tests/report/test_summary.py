"""The summary in Markdown: for a pull request, with nothing of the model that is more than text."""

import re

from rmsnorm_deploy.report.text import cells, code, sentence, visible
from tests.report.conftest import EVIL


def without_code(line):
    """A line of Markdown without its code spans: a run of backquotes goes to the next run of the same length."""
    return re.sub(r"(?<!`)(`+)(?!`)(.*?[^`])\1(?!`)", "", line)


def test_it_says_what_the_page_says(reports):
    text = reports.texts["full.md"]
    for norm in reports.fusion.fused:
        assert norm.node in text
    for shown in ("fused 5 of 5", "**PASSED**", "120 \u00b5s", "1.98", "epsilon 1e-06", "`rmsnorm-deploy fuse"):
        assert shown in text
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert len(tables) >= 3
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_texts_of_the_model_are_code(reports):
    text = reports.texts["evil.md"]
    for line in text.splitlines():
        outside = (
            without_code(line).replace("<details><summary>", "").replace("</summary>", "").replace("</details>", "")
        )
        assert not re.search(r"[<@`]|https?:|!\[|\]\(", outside), line
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1, table
    assert "3 near-misses" in text


def test_code_has_one_line_and_an_end():
    for text in (*EVIL, "", " ", "`", "``a`", "a`", "|", "\\|", "\\", "a\u2028b"):
        shown = code(text)
        assert "\n" not in shown
        assert "|" not in shown
        assert without_code(f"x {shown} y") in ("x  y", "x (empty) y")
        assert cells(visible(text, 30)) <= 30


def test_sentences_stay_plain_where_they_have_no_marks():
    assert (
        sentence("goes into Relu, which is not part of a norm here")
        == "goes into Relu, which is not part of a norm here"
    )
    for text in ("see <b>", "a_b_c", "@x", "www.evil.example", "a\nb", "#1", "*x*"):
        assert sentence(text).startswith("`")
