"""The pages of docs/reference that are made from the code: ``python -m tests.docs.reference`` writes them.

Operators and attributes come from ``op/definition.py``, the command line from the functions of the commands, exit codes
from the errors' classes, and the Python API from signatures and docstrings, which are read without importing: the pages
are the same where TVM and PyTorch are not installed.
"""

import ast
import enum
import functools
import importlib
import inspect
import pkgutil
import sys
import typing
from pathlib import Path

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
from tests.docs import api
from tests.docs.charts import CHARTS, drawn
from tests.docs.markdown import cell, prose, string_below, table

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
MADE = "<!-- Made from the code by `python -m tests.docs.reference`: change that, not this page. -->\n\n"

EXIT_CODES = {
    "0": "done; also where there was nothing to fuse or unfuse: the output is then a copy (`--require all` wants at "
    "least one norm)",
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


# Operators


def operators():
    parts = ["# Operators and attributes\n\n", MADE]
    parts.append(
        f"The domain is `{DOMAIN}`, its versions {', '.join(f'{v.number}' for v in VERSIONS)}. The element type T of X "
        f"and Y is {', '.join(t.name for t in TYPES[:-1])} or {TYPES[-1].name}. A fused model is of ai.onnx opset "
        f"{MIN_OPSET} or newer, and holds each operator's meaning as a function of standard operators.\n\n"
    )
    parts.append(prose(inspect.getdoc(definition).partition("\n\n")[2]) + "\n\n")
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
    parts.append(cell(string_below(ast.parse(inspect.getsource(definition)), "ATTRIBUTES")).split(". ", 1)[-1] + "\n\n")
    parts.append("Why there is more than one operator is [another page](../explanation/operators.md).\n")
    return "".join(parts)


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
        info = next((m for m in typing.get_args(hints[name]) if isinstance(m, (ArgumentInfo, OptionInfo))), None)
        if info is None:  # what typer itself gives, such as its context
            continue
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


PAGES = {
    "operators.md": operators,
    "command-line.md": command_line,
    "python.md": functools.partial(api.python, MADE),
}


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
