"""The models that a command is given: files, folders, patterns and stdin; and where the result of each goes."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rmsnorm_deploy.errors import ModelError, UsageError

STDIN = STDOUT = "-"
_WILD = "*?["


@dataclasses.dataclass(frozen=True)
class Source:
    """A model to be read.

    Attributes:
        path: the file.
        name: what it is called to people.
        place: where its result goes in a folder of results.
    """

    path: Path
    name: str
    place: Path


@dataclasses.dataclass(frozen=True)
class Job:
    """A model, and what is to be written.

    Attributes:
        name: what the model is called to people.
        path: its file.
        output: the file to write, ``-`` for stdout, or None.
        new_folder: whether the folder of ``output`` is made where it is missing.
    """

    name: str
    path: Path
    output: str | None
    new_folder: bool = False


@dataclasses.dataclass(frozen=True)
class Jobs:
    """What a command is to do.

    Attributes:
        jobs: one for each model.
        several: more than one file was named, or a folder or pattern: the result is a summary.
    """

    jobs: tuple[Job, ...]
    several: bool


@contextlib.contextmanager
def jobs_of(given: list[str], output: str | None) -> Iterator[Jobs]:
    """What there is to do for the models ``given`` and the output named on the command line.

    Args:
        given: files, folders (every ``.onnx`` below), patterns, or ``-`` for stdin.
        output: a file; a folder, which several models need and which keeps the paths below a folder or pattern; ``-``
            for stdout; or None.

    Raises:
        UsageError: two results would have one name, or a result would replace one of the models.
        ModelError: a pattern or folder has no model, or stdin is none that can be read alone.
    """
    with contextlib.ExitStack() as stack:
        several = len(given) > 1 or (given[0] != STDIN and _is_group(given[0]))
        into = None if output in (None, STDOUT) else Path(str(output))
        sources = _apart([s for text in given for s in _sources(text, into if several else None, stack)])
        if output is None or output == STDOUT:
            if several and output == STDOUT:
                raise UsageError("stdout is for one model, and these are several", "Name a folder: '-o fused/'.")
            jobs = tuple(Job(s.name, s.path, output) for s in sources)
        elif several or output.endswith("/") or _is_folder(output):
            if os.path.lexists(output) and not _is_folder(output):
                raise UsageError(f"the output {output} is not a folder, and these are several models", "Name a folder.")
            jobs = tuple(Job(s.name, s.path, str(Path(output) / s.place), new_folder=True) for s in sources)
        else:
            jobs = tuple(Job(s.name, s.path, output) for s in sources)
        if several:
            _check_apart(jobs)
        yield Jobs(jobs, several)


def _is_group(text: str) -> bool:
    return _is_folder(text) or (not os.path.lexists(text) and any(c in text for c in _WILD))


def _is_folder(text: str) -> bool:
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):  # no name that a file can have
        return False


def _sources(text: str, output: Path | None, stack: contextlib.ExitStack) -> list[Source]:
    if text == STDIN:
        return [_stdin(stack)]
    try:
        is_group = _is_group(text)
    except (OSError, ValueError):  # reading it says what is wrong
        is_group = False
    if not is_group:
        return [Source(Path(text), text, Path(Path(text).name))]
    if _is_folder(text):
        root = Path(text)
        found = list(_models_below(root, output))
        if not found:
            raise ModelError(f"there is no .onnx file in the folder {text}", "Name a folder of models, or a file.")
    else:
        parts = Path(text).parts
        fixed = next(i for i, part in enumerate(parts) if any(c in part for c in _WILD))
        root = Path(*parts[:fixed])
        found = [Path(name) for name in sorted(glob.glob(text, recursive=True)) if Path(name).is_file()]  # noqa: PTH207
        found = [path for path in found if output is None or not _is_below(path, output)]
        if not found:
            raise ModelError(f"no file matches '{text}'", "Check the pattern.")
    return [Source(path, str(path), path.relative_to(root)) for path in found]


def _is_below(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(folder)) in Path(os.path.realpath(path)).parents


def _models_below(root: Path, output: Path | None) -> Iterator[Path]:
    """The models in a folder and in the folders below, but for hidden ones, and for results that went there before."""
    results = None if output is None else os.path.realpath(output)
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(f for f in folders if not f.startswith(".") and os.path.realpath(here / f) != results)
        yield from (here / f for f in sorted(files) if f.endswith(".onnx") and not f.startswith("."))


def _stdin(stack: contextlib.ExitStack) -> Source:
    """Stdin as a file, which goes away in the end."""
    import onnx

    from rmsnorm_deploy.model.external import external_tensors

    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("'-' reads the model from stdin, which is a terminal", "Pipe a model into it.")
    content = sys.stdin.buffer.read()
    if not content:
        raise ModelError("stdin is empty", "Pipe a model into it: what stands in front of the pipe may have failed.")
    path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmsnorm-deploy."))) / "stdin.onnx"
    path.write_bytes(content)
    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception:  # whoever reads the file says what is wrong with it
        proto = onnx.ModelProto()
    if next(external_tensors(proto), None) is not None:
        raise ModelError(
            "the model on stdin has weights in other files, and stdin has no folder in which they could be",
            "Name its file instead.",
        )
    return Source(path, "stdin", Path(path.name))


def _apart(sources: list[Source]) -> list[Source]:
    """The sources, each once; files of one base name that were named one by one keep their paths below what they share.

    Raises:
        UsageError: two results would have one name nevertheless.
    """
    once = list({os.path.realpath(s.path): s for s in reversed(sources)}.values())[::-1]
    names = Counter(s.place for s in once)
    alike: dict[Path, list[Path]] = {}
    for s in once:
        if names[s.place] > 1:
            alike.setdefault(s.place, []).append(Path(os.path.realpath(s.path.parent)))
    roots = {place: os.path.commonpath(folders) for place, folders in alike.items()}
    return [
        dataclasses.replace(s, place=Path(os.path.realpath(s.path.parent)).relative_to(roots[s.place]) / s.path.name)
        if s.place in roots
        else s
        for s in once
    ]


def _check_apart(jobs: tuple[Job, ...]) -> None:
    outputs: dict[str, Job] = {}
    models = {os.path.realpath(job.path): job for job in jobs}
    for job in jobs:
        if job.output is None:
            continue
        real = os.path.realpath(job.output)
        if real in outputs:
            raise UsageError(
                f"the results of {outputs[real].name} and {job.name} would both be {job.output}",
                "Fuse them into different folders.",
            )
        outputs[real] = job
        if real in models and models[real] is not job:
            raise UsageError(
                f"the result of {job.name} would replace {models[real].name}, which is another of the models",
                "Choose another folder for the results.",
            )
