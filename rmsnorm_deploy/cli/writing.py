"""What the commands have in common that make a model of a model: the checks before, the writing, and what is said."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rmsnorm_deploy.cli.options import is_there, load_inputs, shapes_of
from rmsnorm_deploy.cli.outcome import outcome
from rmsnorm_deploy.cli.printing import Told, add_row, print_json, say, show, table_of
from rmsnorm_deploy.cli.reporting import ReportFile
from rmsnorm_deploy.cli.sources import STDOUT, Job
from rmsnorm_deploy.errors import UsageError, VerificationFailed


class Output:
    """Where a result goes, and how it is checked beforehand.

    Args:
        job: the model, and the file that is to be written; none with ``dry_run``.
        example: a name for it, for the messages.
        verify: whether the result is compared with the model before it appears.
        dry_run: nothing is to be written.
        force: an existing file is replaced.
        inputs: a file of inputs for the comparison.
        shapes: shapes of generated inputs, as the command line has them.
        seed: of the generator.
        no_less_exact: a result whose error is larger than that of the model is refused, too.
        weights: what becomes of weights in other files: see :func:`rmsnorm_deploy.save`.
        page: a report to look at, which is there of a result that is refused, too.

    Attributes:
        saved: what was written; None before.
        compared: what the comparison found; None without.

    Raises:
        UsageError: the options contradict each other, or the output cannot be written.
    """

    def __init__(
        self,
        job: Job,
        *,
        example: str,
        verify: bool,
        dry_run: bool,
        force: bool,
        inputs: Path | None,
        shapes: list[str] | None,
        seed: int,
        no_less_exact: bool = False,
        weights: str | None = None,
        page: ReportFile | None = None,
    ) -> None:
        model, output = job.path, job.output
        if output is None and not dry_run:
            raise UsageError("there is no output: -o is missing", f"Add '-o {example}', or --dry-run to write nothing.")
        if dry_run and verify:
            raise UsageError("--verify needs a result, and --dry-run makes none", "Leave one of them out.")
        if not verify and (inputs is not None or shapes or seed):
            raise UsageError(
                "--inputs, --shapes and --seed are for --verify, which is missing", "Add --verify or leave them out."
            )
        self.saved: Any = None
        self.compared: Any = None
        self._path: Path | None = None
        self._stdout = output == STDOUT
        if self._stdout and not dry_run:
            if sys.stdout.isatty():
                raise UsageError("'-' writes the model to stdout, which is a terminal", f"Name a file: '-o {example}'.")
            if weights not in (None, "embed"):
                raise UsageError(
                    f"--weights {weights} has weights in another file, which stdout cannot carry",
                    f"Name a file: '-o {example}'.",
                )
            weights = "embed"
        elif output is not None and not self._stdout:
            from rmsnorm_deploy.model.files import check_output, output_path

            # before any work: a refusal should not take a minute
            self._path = output_path(output)
            if is_there(model):
                check_output(self._path, source=model, overwrite=force or dry_run, new_folder=job.new_folder or dry_run)
        self._model, self._verify, self._force, self._weights = model, verify, force, weights
        self._dry_run, self._no_less_exact, self._new_folder = dry_run, no_less_exact, job.new_folder
        self._page = page
        self._asked: dict[str, Any] = {"inputs": load_inputs(inputs, model), "shapes": shapes_of(shapes), "seed": seed}

    @property
    def takes_stdout(self) -> bool:
        """Whether the model goes to stdout, so that nothing else may."""
        return self._stdout and not self._dry_run

    @contextlib.contextmanager
    def written(self, result: Any, report: Any, progress: Told | None = None) -> Iterator[None]:
        """Write the result, once it is checked. If the body fails, which tells of it, it is taken back.

        Args:
            result: the model.
            report: what was done.
            progress: who wants to know.

        Raises:
            VerificationFailed: it does not compute what the model does; nothing was written.
            UsageError: it cannot be written.
        """

        def check(staged: Path) -> None:
            if self._verify:
                from rmsnorm_deploy.check.verify import verify as compare

                self.compared = compare(self._model, staged, **self._asked, progress=progress)
                try:
                    self.compared.require()
                    if self._no_less_exact:
                        self.compared.require_no_less_exact()
                except VerificationFailed:
                    if self._page is not None:
                        self._page.write(report, fused=result, verification=self.compared)
                    raise

        with contextlib.ExitStack() as stack:
            path = self._path
            if self.takes_stdout:
                path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmsnorm-deploy."))) / "stdout.onnx"
            if path is not None and not self._dry_run:
                from rmsnorm_deploy.model.files import new_folders
                from rmsnorm_deploy.model.save import saving

                if self._new_folder:
                    stack.enter_context(new_folders(path.parent))
                place = saving(
                    result,
                    path,
                    source=self._model,
                    overwrite=self._force,
                    check=check,
                    weights=self._weights,
                    progress=progress,
                )
                self.saved = stack.enter_context(place)
            if self._page is not None:
                made = None if self._dry_run else result
                stack.enter_context(self._page.written(report, fused=made, verification=self.compared))
            if self.takes_stdout and path is not None:
                with path.open("rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.buffer.flush()
            yield

    def to_dict(self, report: Any) -> dict[str, Any]:
        """Everything that is known of the result, as plain data."""
        return {
            **report.to_dict(),
            "dry_run": self._dry_run,
            "output": self.saved.to_dict() if self.saved else None,
            "verification": self.compared.to_dict() if self.compared else None,
        }

    def tell(self, report: Any, *, as_json: bool, table: Callable[[Any], None]) -> None:
        """What was done, to stdout: as JSON, or as ``table`` prints it; to stderr where the model goes to stdout."""
        if as_json:
            print_json(self.to_dict(report))
        elif self.takes_stdout:
            say(outcome(report))
            for warning in report.warnings:
                say(f"warning: {warning}")
        else:
            table(report)

    def talk(self) -> None:
        """What was verified and written, to stderr."""
        if self.compared is not None:
            say(f"verified: {self.compared.summary()}")
            if self._no_less_exact and self.compared.less_exact:
                say(f"warning: less exact: {self.compared.less_exact}")
            if self.compared.library:
                say(f"warning: verified without the library's kernels: {self.compared.library}")
        if self.saved is not None:
            where = "the model to stdout" if self.takes_stdout else self.saved.path
            say(f"wrote {where}" + (f"; {self.saved.note}" if self.saved.note else ""))
        if self._page is not None:
            self._page.tell()


def print_report(report: Any) -> None:
    """What was done to the operators, to stdout; warnings to stderr."""
    print_changes(report)
    show(outcome(report))
    for warning in report.warnings:
        say(f"warning: {warning}")


def print_changes(report: Any) -> None:
    """The operators of which there are more or fewer than before, to stdout."""
    names = sorted(set(report.ops_before) | set(report.ops_after))
    changed = [n for n in names if report.ops_before.get(n, 0) != report.ops_after.get(n, 0)]
    if changed:
        table = table_of("op", "before", "after", right=("before", "after"))
        for name in changed:
            add_row(table, name, str(report.ops_before.get(name, 0)), str(report.ops_after.get(name, 0)))
        add_row(table, "all nodes", str(sum(report.ops_before.values())), str(sum(report.ops_after.values())))
        show(table)
        show("")
