"""The pages: README.md and everything below docs/, their links, and what they give to run."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
INDEX = ROOT / "docs" / "index.md"
PAGES = sorted([README, *(ROOT / "docs").rglob("*.md")])
OTHERS = [ROOT / n for n in ("CONTRIBUTING.md", "SECURITY.md", "samples/README.md", "benchmarks/README.md")]
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*$")


class Block(NamedTuple):
    """Code on a page.

    ``reason`` says why it is not run; "" where it is.
    """

    language: str
    text: str
    reason: str


def named(path):
    return path.relative_to(ROOT).as_posix()


def blocks(page):
    """The fenced code of a page, in its order."""
    text, found, end = page.read_text(), [], 0
    for match in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        reason = NOT_RUN.search(text[end : match.start()])
        found.append(Block(match[1], match[2], reason[1] if reason else ""))
        end = match.end()
    return found


def without_code(text):
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def links(page):
    """Targets of the links of a page."""
    return re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", without_code(page.read_text()))


def anchors(page):
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    heads = re.findall(r"^#{1,6} (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower().replace("`", "")).strip().replace(" ", "-") for h in heads}


def resolved(page, target):
    """The file that a relative link leads to."""
    path = target.partition("#")[0]
    return (page.parent / path).resolve() if path else page
