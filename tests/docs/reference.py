"""The pages of docs/reference that are made from the code: ``python -m tests.docs.reference`` writes them.

Operators and attributes come from ``op/definition.py``, the command line from the functions of the commands, exit codes
from the errors' classes, and the Python API from signatures and docstrings, which are read without importing: the pages
are the same where TVM and PyTorch are not installed.
"""

import ast
import enum
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
import typing
from pathlib import Path

import typer
from onnx import AttributeProto
from typer.models import ArgumentInfo, OptionInfo

from rmsnorm_deploy import errors
from rmsnorm_deploy.cli import commands as cli_commands
from rmsnorm_deploy.cli import tree
from rmsnorm_deploy.cli.signals import STATUS
from rmsnorm_deploy.op import DOMAIN, MIN_OPSET, Op, definition
from rmsnorm_deploy.op.definition import OPERANDS, attributes_of
from rmsnorm_deploy.op.dtypes import TYPES
from rmsnorm_deploy.op.versions import VERSIONS
from tests.docs.charts import CHARTS, drawn

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
PACKAGE = ROOT / "rmsnorm_deploy"
MADE = "<!-- Made from the code by `python -m tests.docs.reference`: change that, not this page. -->\n\n"

EXIT_CODES = {
    "0": "done; also where there was nothing to fuse or unfuse (with `--require all`, too): the output is then a copy",
    errors.VerificationFailed: "`verify` found a difference; or `--verify` did, or `--require` was not met, and no "
    "output was written",
    errors.UsageError: "usage: an option is unknown, or options contradict each other; the output exists, is the "
    "input, or cannot be written",
    errors.ModelError: "the model is missing, unreadable, unsafe to read (weight files outside its folder), too old, "
    "or has operators that TVM lacks",
    errors.MissingEnvironment: "the environment lacks what was asked for, such as onnxruntime; or stdout cannot be "
    "written",
    "70": "an error of ours; `--debug` shows it",
    "141": "the reader of a pipe went away",
}
"""What each status means, by the error that ends in it, or by its number."""


def words(text):
    """A docstring's text as Markdown: roles and double backticks become code, and ``::`` begins a block."""
    text = re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def cell(text):
    return words(" ".join(text.split())).replace("|", "\\|")


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


# Operators


def operators():
    parts = ["# Operators and attributes\n\n", MADE]
    parts.append(
        f"The domain is `{DOMAIN}`, its versions {', '.join(f'{v.number}' for v in VERSIONS)}. The element type T of X "
        f"and Y is {', '.join(t.name for t in TYPES[:-1])} or {TYPES[-1].name}. A fused model is of ai.onnx opset "
        f"{MIN_OPSET} or newer, and holds each operator's meaning as a function of standard operators.\n\n"
    )
    parts.append(_prose(inspect.getdoc(definition).partition("\n\n")[2]) + "\n\n")
    for op in Op:
        parts.append(f"## {op.value}\n\n`({', '.join(op.inputs)}) -> ({', '.join(op.outputs)})`\n\n")
        rows = [(f"`{n}`", "input" if n in op.inputs else "output", OPERANDS[n][0], cell(OPERANDS[n][1])) for n in
                (*op.inputs, *op.outputs)]  # fmt: skip
        parts.append(table(("operand", "", "type", "meaning"), rows) + "\n")
        rows = []
        for a in attributes_of(op):
            kind = AttributeProto.AttributeType.Name(a.kind).lower()
            default = "" if a.default is None else f"`{a.default}`"
            rows.append((f"`{a.name}`", kind, default, cell(a.doc)))
        parts.append(table(("attribute", "kind", "default", "meaning"), rows) + "\n")
    parts.append(
        cell(_string_below(ast.parse(inspect.getsource(definition)), "ATTRIBUTES")).split(". ", 1)[-1] + "\n\n"
    )
    parts.append("Why there is more than one operator is [another page](../explanation/operators.md).\n")
    return "".join(parts)


def _string_below(tree, name):
    """The string that follows the assignment of ``name``."""
    for node, following in zip(tree.body, tree.body[1:], strict=False):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if getattr(target, "id", "") == name:
            return inspect.cleandoc(following.value.value)
    raise LookupError(name)


# Command line


def commands():
    """Name and function of every command, in the order of ``--help``."""
    names = [found.name for found in pkgutil.iter_modules(cli_commands.__path__)]
    modules = {name: importlib.import_module(f"{cli_commands.__name__}.{name}") for name in names}
    return [(n, m.command) for n, m in sorted(modules.items(), key=lambda item: (item[1].ORDER, item[0]))]


def command_line():
    parts = ["# Command line\n\n", MADE, f"{tree.app.info.help}\n\n"]
    rows = [(f"[`{n}`](#{n})", cell(inspect.getdoc(c).split("\n\n")[0])) for n, c in commands()]
    parts.append(table(("command", "does"), rows) + "\n")
    parts.append("Options of `rmsnorm-deploy` itself:\n\n" + _options(tree._options) + "\n")
    parts.append("Data go to stdout and talk to stderr. `--json` prints the whole result as data, and an error as\n")
    parts.append('`{"error": {"message", "hint", "exit_code"}}`.\n\n')
    for name, command in commands():
        arguments = "".join(f" {label}" for label, info, _ in parameters(command) if isinstance(info, ArgumentInfo))
        parts.append(f"## {name}\n\n`rmsnorm-deploy {name}{arguments} [OPTIONS]`\n\n")
        parts.append("\n\n".join(cell(p) for p in inspect.getdoc(command).split("\n\n")) + "\n\n")
        parts.append(_options(command) + "\n")
    parts.append("## Exit codes\n\n" + table(("exit code", "meaning"), exit_codes()))
    return "".join(parts)


def parameters(command):
    """What a command takes, as its function says: how it is written, what is said of it, and its default."""
    hints = typing.get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        if hints[name] is typer.Context:
            continue
        info = next(m for m in typing.get_args(hints[name]) if isinstance(m, (ArgumentInfo, OptionInfo)))
        kind = typing.get_args(hints[name])[0]
        if isinstance(info, ArgumentInfo):
            label = info.metavar or name.upper()
        else:
            base = next((t for t in (int, float) if t in (kind, *typing.get_args(kind))), str)
            value = info.metavar or {int: "N", float: "X", str: "TEXT"}[base]
            # of typer.Option("-o", "--output") in an annotation the first one is where a default would be
            declared = [d for d in (info.default, *(info.param_decls or ())) if isinstance(d, str)]
            declared = declared or [f"--{name.replace('_', '-')}"]
            label = ", ".join(declared) + ("" if bool in (kind, *typing.get_args(kind)) else f" {value}")
        if not info.hidden:
            yield label, info, parameter.default


def _options(command):
    rows = []
    for label, info, default in parameters(command):
        shown = default not in (None, False, "", ()) and default is not inspect.Parameter.empty
        plain = default.value if isinstance(default, enum.Enum) else default
        rows.append((f"`{label}`".replace("|", "\\|"), f"`{plain}`" if shown else "", cell(info.help or "")))
    return table(("option", "default", "meaning"), rows)


def exit_codes():
    """Rows of number and meaning, by number."""
    rows = [(str(key if isinstance(key, str) else key.exit_code), text) for key, text in EXIT_CODES.items()]
    for number, status in STATUS.items():
        rows.append((str(status), f"{number.name} arrived" + (" (Ctrl-C)" if number.name == "SIGINT" else "")))
    return sorted(rows, key=lambda row: int(row[0]))


# Python


def python():
    parts = ["# Python\n\n", MADE]
    parts.append("What stands here is stable within a version; everything else may change.\n\n")
    for module in ("rmsnorm_deploy", "rmsnorm_deploy.torch", "rmsnorm_deploy.tvm"):
        parts.append(f"## {module}\n\n")
        file = PACKAGE.joinpath(*module.split(".")[1:], "__init__.py")
        tree = ast.parse(file.read_text())
        lead, _, rest = ast.get_docstring(tree).partition("\n\n")
        parts.append(words(lead) + "\n\n" + _prose(rest) + "\n\n")
        for name in _all(tree):
            found = _definition(tree, file, name)
            parts.append(_entry(f"{module}.{name}", found))
    parts.append(_entry_of_operators())
    return "".join(parts).rstrip() + "\n"


def _all(tree):
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
    raise LookupError("__all__")


def _definition(tree, file, name):
    """Where the module's own imports say that ``name`` is defined."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(a.name == name for a in node.names):
            path = ROOT.joinpath(*node.module.split("."))
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            inner = ast.parse(path.read_text())
            for found in (n for top in inner.body for n in (top.body if isinstance(top, ast.If) else [top])):
                if getattr(found, "name", None) == name and not _is_overload(found):
                    return found
                target = found.targets[0] if isinstance(found, ast.Assign) else getattr(found, "target", None)
                if getattr(target, "id", "") == name:
                    return _Constant(name, _string_below(inner, name))
            return _definition(inner, path, name)
    raise LookupError(f"{name} of {file}")


class _Constant(typing.NamedTuple):
    """A name that is assigned, and what the string below it says."""

    name: str
    said: str


def _is_overload(node):
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in getattr(node, "decorator_list", ()))


def _entry(name, node):
    parts = [f"### {name.rpartition('.')[2]}\n\n"]
    if isinstance(node, ast.FunctionDef):
        parts.append(f"```text\n{_signature(name, node)}\n```\n\n")
        parts.append(_documented(ast.get_docstring(node) or ""))
    elif isinstance(node, ast.ClassDef):
        init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        dataclass = any("dataclass" in ast.unparse(d) for d in node.decorator_list)
        own = f"```text\n{_signature(name, init, method=True)}\n```\n\n" if init and not dataclass else ""
        parts.append(own or f"```text\nclass {name}\n```\n\n")
        parts.append(_documented(ast.get_docstring(node) or ""))
        for member, said in zip(node.body, node.body[1:], strict=False):
            if isinstance(member, ast.Assign) and isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant):
                parts.append(f"* `{ast.unparse(member)}`: {cell(said.value.value)}\n")
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and (not method.name.startswith("_") or method.name == "__call__"):
                is_property = any("property" in ast.unparse(d) for d in method.decorator_list)
                said = words((ast.get_docstring(method) or "").split("\n\n")[0].replace("\n", " "))
                shown = method.name if is_property else _signature(method.name, method, method=True)
                parts.append(f"* `{' '.join(shown.split())}`: {said}\n")
        parts.append("\n")
    else:
        parts.append(_documented(node.said))
    return "".join(parts)


def _signature(name, node, method=False):
    text = ast.unparse(node.args)
    text = re.sub(r"^self(, )?", "", text) if method else text
    result = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    one = f"{name}({text}){result}"
    if len(one) <= 96:
        return one
    depth, lines, start = 0, [], 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            lines.append(text[start : i + 1].strip())
            start = i + 1
    lines.append(text[start:].strip() + ",")
    return f"{name}(\n" + "\n".join(f"    {line}" for line in lines) + f"\n){result}"


_SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Yields):$")


def _documented(text):
    """A docstring in Google's form as Markdown."""
    parts, section = [], ""
    for paragraph in re.split(r"\n\n+", text):
        head, *lines = paragraph.splitlines()
        if not _SECTION.match(head):
            parts.append(_prose(paragraph) + "\n\n")
            continue
        section = head.rstrip(":")
        parts.append(f"*{section}*\n\n")
        body = textwrap.dedent("\n".join(lines))
        if section in ("Returns", "Yields"):
            parts.append(cell(body).replace("\\|", "|") + "\n\n")
            continue
        for item in re.split(r"\n(?=\S)", body):
            name, colon, said = item.partition(":")
            said = words(" ".join(said.split()))
            parts.append(f"* `{name}`: {said}\n" if colon else f"* {words(' '.join(item.split()))}\n")
        parts.append("\n")
    return "".join(parts)


def _unquoted(found):
    """A name in a block of code without its quotes; what stands in columns behind it stays there."""
    return found[1] + (found[2] + "    " if found[2] else "")


def _prose(text):
    """Paragraphs as they are, indented ones as code."""
    done = []
    for paragraph in re.split(r"\n\n+", text):
        lines = paragraph.splitlines()
        if lines and all(line.startswith("    ") for line in lines):
            done.append("```text\n" + re.sub(r"``(\w+)``( {2,})?", _unquoted, textwrap.dedent(paragraph)) + "\n```")
        else:
            done.append(words(re.sub(r"::$", ":", paragraph)))
    return "\n\n".join(done)


def _entry_of_operators():
    from rmsnorm_deploy.torch.naming import snake_case

    names = ", ".join(f"`{snake_case(op)}`" for op in Op)
    return (
        f"## The operators in PyTorch\n\n`rmsnorm_deploy.torch` has a function for each operator: {names}. It takes "
        "the operator's inputs as tensors and, by name, its [attributes](operators.md) but for `output_type`, which is "
        "the type of X; what is not given has its default. In float64, what is not said is float64, too. They are "
        f"`torch.ops.{DOMAIN}` as well, and have gradients.\n"
    )


PAGES = {"operators.md": operators, "command-line.md": command_line, "python.md": python}


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for chart in CHARTS:
        image = ROOT / chart.image
        image.parent.mkdir(exist_ok=True)
        image.write_text(drawn(chart))
        sys.stdout.write(f"{image}\n")
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make())
        sys.stdout.write(f"{FOLDER / name}\n")


if __name__ == "__main__":
    main()
