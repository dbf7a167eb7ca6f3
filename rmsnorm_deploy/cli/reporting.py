"""The option ``--report``: what a command did, as a page to look at or as Markdown."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from rmsnorm_deploy.cli.options import is_there
from rmsnorm_deploy.cli.printing import say
from rmsnorm_deploy.cli.sources import STDOUT, Jobs
from rmsnorm_deploy.errors import UsageError

Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Also write a report: an .html page, or .md for pull requests."),
]
ReportForce = Annotated[bool, typer.Option("--force", help="Replace an existing report.")]
"""``--force`` of commands that write nothing else."""


def require_one(path: Path | None, jobs: Jobs) -> None:
    """A report is about one model, whose name the command line has.

    Raises:
        UsageError: there are several, or a folder or pattern, which may have several tomorrow.
    """
    if path is not None and jobs.several:
        raise UsageError(
            "--report is about one model, and these are several, or a folder or pattern",
            "Name one model, or leave out --report; --json has everything of each.",
        )


class ReportFile:
    """Where the report goes; nowhere without a path.

    Args:
        path: as ``--report`` has it; in a folder it is called as the model is.
        model: the file that it is about.
        context: of the command, whose words are shown in the report.
        force: an existing report is replaced.
        output: another file that the command writes, or ``-`` for stdout.

    Raises:
        UsageError: the report cannot be written there.
    """

    def __init__(
        self, path: Path | None, model: Path, context: typer.Context, *, force: bool, output: str | None = None
    ) -> None:
        if path is not None and is_there(path) and path.is_dir():
            path = path / f"{model.stem}.html"
        self._path, self._model, self._force = path, model, force
        given = context.find_root().obj or ()
        self._command = shlex.join(["rmsnorm-deploy", *given])
        if path is None:
            return
        from rmsnorm_deploy.model.files import same_file
        from rmsnorm_deploy.report.write import report_path

        if output not in (None, STDOUT) and same_file(path, Path(str(output))):
            raise UsageError(f"the report and the output are one file, {path}", "Give them two names.")
        if is_there(model):  # else the model's own error is the better one
            report_path(path, model, overwrite=force)

    @contextlib.contextmanager
    def written(self, fusion: Any = None, **what: Any) -> Iterator[None]:
        """While this lasts the report is there; should the body fail, it is taken back.

        Args:
            fusion: what was done to the model.
            what: more of the arguments of :func:`rmsnorm_deploy.write_report`.
        """
        if self._path is None:
            yield
            return
        from rmsnorm_deploy.converting.report import ConversionReport
        from rmsnorm_deploy.report.write import writing_report

        if isinstance(fusion, ConversionReport):
            what, fusion = {**what, "conversion": fusion}, None

        place = writing_report(
            self._path, self._model, fusion, commands=(self._command,), overwrite=self._force, **what
        )
        with place:
            yield

    def write(self, fusion: Any = None, **what: Any) -> None:
        """Write the report and say so. Arguments are those of :meth:`written`."""
        with self.written(fusion, **what):
            pass
        self.tell()

    def tell(self) -> None:
        """Say where the report is."""
        if self._path is not None:
            say(f"wrote the report {self._path}")
