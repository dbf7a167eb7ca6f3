"""The change that CONTRIBUTING.md shows is all that a new spelling takes."""

import re
import textwrap
from pathlib import Path

import pytest

from rmsnorm_deploy.recognise import grammar
from tests.support.spellings import norms
from tests.support.spellings.check import check
from tests.support.spellings.norms import Spelling

DIFF = re.search(r"```diff\n(.*?)```", (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(), re.DOTALL)


def added_to(name):
    """The lines that the shown diff adds to one file."""
    part = DIFF[1].split(f"{name}\n")[1].split("---")[0]
    return textwrap.dedent("\n".join(line[1:] for line in part.splitlines() if line.startswith("+")))


@pytest.fixture
def _builder(monkeypatch):
    new = eval("{" + added_to("tests/support/spellings/norms.py") + "}")
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
