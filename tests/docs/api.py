"""The page about Python: signatures and docstrings of what is public, and of the classes that calls give."""

import ast
import re
import textwrap
import typing
from pathlib import Path

from rmsnorm_deploy.op import DOMAIN
from tests.docs.markdown import cell, prose, string_below, words

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rmsnorm_deploy"
MODULES = ("rmsnorm_deploy", "rmsnorm_deploy.torch", "rmsnorm_deploy.tvm")


class Found(typing.NamedTuple):
    """Where a name is defined."""

    node: ast.AST
    tree: ast.Module
    file: Path


def python(made):
    """The page; ``made`` says how it is made."""
    parts = ["# Python\n\n", made]
    parts.append("What stands here is stable within a version; everything else may change.\n\n")
    public: list[Found] = []
    for module in MODULES:
        parts.append(f"## {module}\n\n")
        file = PACKAGE.joinpath(*module.split(".")[1:], "__init__.py")
        tree = ast.parse(file.read_text())
        lead, _, rest = ast.get_docstring(tree).partition("\n\n")
        parts.append(words(lead) + "\n\n" + prose(rest) + "\n\n")
        for name in _all(tree):
            found = _definition(tree, file, name)
            public.append(found)
            parts.append(_entry(f"{module}.{name}", found.node))
    parts.append(
        "## What calls give\n\nObjects of these classes are made by the functions above, never by a caller.\n\n"
    )
    for found in _given(public):
        module = ".".join(found.file.relative_to(ROOT).with_suffix("").parts)
        parts.append(_entry(f"{module}.{found.node.name}", found.node))
    parts.append(_entry_of_operators())
    return "".join(parts).rstrip() + "\n"


def _all(tree):
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
    raise LookupError("__all__")


def _definition(tree, file, name):
    """Where the module's own imports, or the module itself, say that ``name`` is defined."""
    for found in (n for top in tree.body for n in (top.body if isinstance(top, ast.If) else [top])):
        if getattr(found, "name", None) == name and not _is_overload(found):
            return Found(found, tree, file)
        target = found.targets[0] if isinstance(found, ast.Assign) else getattr(found, "target", None)
        if getattr(target, "id", "") == name:
            return Found(_Constant(name, string_below(tree, name)), tree, file)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(a.name == name for a in node.names):
            path = ROOT.joinpath(*node.module.split("."))
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            if path.is_file():  # else it is somebody else's
                return _definition(ast.parse(path.read_text()), path, name)
    raise LookupError(f"{name} of {file}")


def _given(public):
    """The classes of ours that results are made of and that are not public by name, each once, as they are met."""
    known = {(f.file, getattr(f.node, "name", "")) for f in public}
    queue, given = list(public), []
    while queue:
        found = queue.pop(0)
        for name in _names(found.node):
            try:
                inner = _definition(found.tree, found.file, name)
            except LookupError:  # a name of Python's or of another package
                continue
            if isinstance(inner.node, ast.ClassDef) and (inner.file, name) not in known:
                known.add((inner.file, name))
                given.append(inner)
                queue.append(inner)
    return given


def _names(node):
    """Names in what a function returns, or in the fields and public methods of a class."""
    if isinstance(node, ast.FunctionDef):
        parts = [node.returns]
    elif isinstance(node, ast.ClassDef):
        parts = [n.annotation for n in node.body if isinstance(n, ast.AnnAssign)]
        parts += [n.returns for n in node.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    else:
        parts = []
    return [n.id for part in parts if part is not None for n in ast.walk(part) if isinstance(n, ast.Name)]


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
    else:
        parts.append(_documented(node.said))
    return "".join(parts).rstrip() + "\n\n"


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
            parts.append(prose(paragraph) + "\n\n")
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


def _entry_of_operators():
    from rmsnorm_deploy.torch.naming import OPERATORS

    names = ", ".join(f"`{name}`" for name in OPERATORS)
    return (
        "## The operators in PyTorch\n\n`rmsnorm_deploy.torch` has a function for each operator but those that "
        f"quantise: {names}. It takes the operator's inputs as tensors and, by name, its [attributes](operators.md) "
        "but for `output_type`, which is "
        "the type of X; what is not given has its default. In float64, what is not said is float64, too. They are "
        f"`torch.ops.{DOMAIN}` as well, and have gradients.\n"
    )
