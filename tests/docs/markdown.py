"""Docstrings as Markdown."""

import ast
import inspect
import re
import textwrap


def words(text):
    """A docstring's text as Markdown: roles and double backticks become code, and ``::`` begins a block."""
    text = re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def cell(text):
    """The same in a cell of a table."""
    return words(" ".join(text.split())).replace("|", "\\|")


def table(head, rows):
    """Rows of cells that are Markdown already."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def string_below(tree, name):
    """The string that follows the assignment of ``name``."""
    for node, following in zip(tree.body, tree.body[1:], strict=False):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if getattr(target, "id", "") == name:
            return inspect.cleandoc(following.value.value)
    raise LookupError(name)


def _unquoted(found):
    """A name in a block of code without its quotes; what stands in columns behind it stays there."""
    return found[1] + (found[2] + "    " if found[2] else "")


def prose(text):
    """Paragraphs as they are, indented ones as code."""
    done = []
    for paragraph in re.split(r"\n\n+", text):
        lines = paragraph.splitlines()
        if lines and all(line.startswith("    ") for line in lines):
            done.append("```text\n" + re.sub(r"``(\w+)``( {2,})?", _unquoted, textwrap.dedent(paragraph)) + "\n```")
        else:
            done.append(words(re.sub(r"::$", ":", paragraph)))
    return "\n\n".join(done)
