"""What the commands have in common that make a model of a model: the checks before, the writing, and what is said."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from rmsnorm_deploy.cli.options import is_there, load_inputs, shapes_of
from rmsnorm_deploy.cli.outcome import outcome
from rmsnorm_deploy.cli.printing import add_row, print_json, say, settle, show, table_of
from rmsnorm_deploy.cli.reporting import ReportFile
from rmsnorm_deploy.errors import UsageError, VerificationFailed


class Output:
    """Where the result goes, and how it is checked beforehand.

    Args:
        model: the file that is read.
        output: the file that is to be written; None with ``dry_run``.
        example: a name for it, for the messages.
        verify: whether the result is compared with ``model`` before it appears.
        dry_run: nothing is to be written.
        force: an existing file is replaced.
        inputs: a file of inputs for the comparison.
        shapes: shapes of generated inputs, as the command line has them.
        seed: of the generator.
        no_less_exact: a result whose error is larger than that of ``model`` is refused, too.

    Raises:
        UsageError: the options contradict each other, or the output cannot be written.
    """

    def __init__(
        self,
        model: Path,
        output: str | None,
        *,
        example: str,
        verify: bool,
        dry_run: bool,
        force: bool,
        inputs: Path | None,
        shapes: list[str] | None,
        seed: int,
        no_less_exact: bool = False,
    ) -> None:
        if output is None and not dry_run:
            raise UsageError("there is no output: -o is missing", f"Add '-o {example}', or --dry-run to write nothing.")
        if dry_run and verify:
            raise UsageError("--verify needs a result, and --dry-run makes none", "Leave one of them out.")
        if not verify and (inputs is not None or shapes or seed):
            raise UsageError(
                "--inputs, --shapes and --seed are for --verify, which is missing", "Add --verify or leave them out."
            )
        if output == "-":
            raise UsageError("a model cannot be written to stdout", f"Name a file: '-o {example}'.")
        if output is not None:
            from rmsnorm_deploy.model.files import check_output, output_path

            # before any work: a refusal should not take a minute
            if is_there(model):
                check_output(output_path(output), source=model, overwrite=force or dry_run)
        self._model, self._path, self._verify, self._force = model, output, verify, force
        self._dry_run, self._no_less_exact = dry_run, no_less_exact
        self._asked: dict[str, Any] = {"inputs": load_inputs(inputs, model), "shapes": shapes_of(shapes), "seed": seed}

    def write(self, result: Any, report: Any, *, as_json: bool, page: ReportFile | None = None) -> None:
        """Write the result, once it is checked, and say so; in a dry run there is only something to say.

        Args:
            result: the model.
            report: what was done.
            as_json: say it as JSON.
            page: a report to look at, which is there of a result that is refused, too.

        Raises:
            VerificationFailed: it does not compute what the model does; nothing was written.
            UsageError: it cannot be written.
        """
        compared = None

        def check(staged: Path) -> None:
            nonlocal compared
            if self._verify:
                from rmsnorm_deploy.check.verify import verify as compare

                compared = compare(self._model, staged, **self._asked)
                try:
                    compared.require()
                    if self._no_less_exact:
                        compared.require_no_less_exact()
                except VerificationFailed:
                    if page is not None:
                        page.write(report, fused=result, verification=compared)
                    raise

        with contextlib.ExitStack() as stack:
            saved = None
            if self._path is not None and not self._dry_run:
                from rmsnorm_deploy.model.save import saving

                place = saving(result, self._path, source=self._model, overwrite=self._force, check=check)
                saved = stack.enter_context(place)
            # in here, so that a result that cannot be told leaves no output
            if page is not None:
                made = None if self._dry_run else result
                stack.enter_context(page.written(report, fused=made, verification=compared))
            if as_json:
                print_json(
                    {
                        **report.to_dict(),
                        "dry_run": self._dry_run,
                        "output": saved.to_dict() if saved else None,
                        "verification": compared.to_dict() if compared else None,
                    }
                )
            settle()
        if compared is not None:
            say(f"verified: {compared.summary()}")
            if compared.library:
                say(f"warning: verified without the library's kernels: {compared.library}")
        if saved is not None:
            say(f"wrote {saved.path}" + (f"; {saved.note}" if saved.note else ""))
        if page is not None:
            page.tell()


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
