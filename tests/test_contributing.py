"""The change that CONTRIBUTING.md shows is all that a new spelling takes."""

import re
import textwrap
from pathlib import Path

import pytest
from spellings import norms
from spellings.norms import Spelling
from test_spellings import check

from rmsnorm_deploy.recognise import grammar

DIFF = re.search(r"```diff\n(.*?)```", (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(), re.DOTALL)


def added_to(name):
    """The lines that the shown diff adds to one file."""
    part = DIFF[1].split(f"{name}\n")[1].split("---")[0]
    return textwrap.dedent("\n".join(line[1:] for line in part.splitlines() if line.startswith("+")))


@pytest.fixture
def _builder(monkeypatch):
    new = eval("{" + added_to("tests/spellings/norms.py") + "}")
    monkeypatch.setattr(norms, "NORMALISE", norms.NORMALISE | new)


@pytest.fixture
def _alternative(monkeypatch):
    before = list(grammar.ALTERNATIVES)
    exec(compile(added_to("rmsnorm_deploy/recognise/grammar.py"), "CONTRIBUTING.md", "exec"), vars(grammar))
    yield
    grammar.ALTERNATIVES[:] = before


@pytest.mark.usefixtures("_builder")
def test_the_builder_alone_is_not_found():
    with pytest.raises(AssertionError, match="goes into Abs"):
        check(Spelling(normalise="abs_sqrt_div"))


@pytest.mark.usefixtures("_builder", "_alternative")
@pytest.mark.parametrize("layout", ["float32", "llama16", "gemma16"])
def test_with_the_alternative_it_is_found_in_every_layout(layout):
    check(Spelling(normalise="abs_sqrt_div", layout=layout))
