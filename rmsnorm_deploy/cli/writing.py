"""What the commands have in common that make a model of a model: the checks before, the writing, and what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmsnorm_deploy.cli.options import load_inputs, shapes_of
from rmsnorm_deploy.cli.outcome import outcome
from rmsnorm_deploy.cli.printing import add_row, print_json, say, show, table_of
from rmsnorm_deploy.errors import UsageError


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

    Raises:
        UsageError: the options contradict each other, or the output cannot be written.
    """

    def __init__(
        self,
        model: Path,
        output: Path | None,
        *,
        example: str,
        verify: bool,
        dry_run: bool,
        force: bool,
        inputs: Path | None,
        shapes: list[str] | None,
        seed: int,
    ) -> None:
        if output is None and not dry_run:
            raise UsageError("there is no output: -o is missing", f"Add '-o {example}', or --dry-run to write nothing.")
        if dry_run and verify:
            raise UsageError("--verify needs a result, and --dry-run makes none", "Leave one of them out.")
        if not verify and (inputs is not None or shapes or seed):
            raise UsageError(
                "--inputs, --shapes and --seed are for --verify, which is missing", "Add --verify or leave them out."
            )
        if output is not None and str(output) == "-":
            raise UsageError("a model cannot be written to stdout", f"Name a file: '-o {example}'.")
        if output is not None:
            from rmsnorm_deploy.model.files import check_output

            # before any work: a refusal should not take a minute
            if model.exists():
                check_output(output, source=model, overwrite=force or dry_run)
        self._model, self._path, self._verify, self._force = model, output, verify, force
        self._dry_run = dry_run
        self._asked: dict[str, Any] = {"inputs": load_inputs(inputs, model), "shapes": shapes_of(shapes), "seed": seed}
        self._saved: Any = None
        self._compared: Any = None

    def write(self, result: Any) -> None:
        """Write the result, once it is checked; nothing in a dry run.

        Raises:
            VerificationFailed: it does not compute what the model does; nothing was written.
            UsageError: it cannot be written.
        """
        if self._path is None or self._dry_run:
            return
        from rmsnorm_deploy.model.save import save

        def check(staged: Path) -> None:
            if self._verify:
                from rmsnorm_deploy.check.verify import verify as compare

                self._compared = compare(self._model, staged, **self._asked)
                self._compared.require()

        self._saved = save(result, self._path, source=self._model, overwrite=self._force, check=check)

    def print_json(self, report: Any) -> None:
        """The report with all that was done, to stdout."""
        print_json(
            {
                **report.to_dict(),
                "dry_run": self._dry_run,
                "output": self._saved.to_dict() if self._saved else None,
                "verification": self._compared.to_dict() if self._compared else None,
            }
        )

    def tell(self) -> None:
        """What was checked and written, to stderr."""
        if self._compared is not None:
            say(f"verified: {self._compared.summary()}")
            if self._compared.library:
                say(f"warning: verified without the library's kernels: {self._compared.library}")
        if self._saved is not None:
            say(f"wrote {self._saved.path}" + (f"; {self._saved.note}" if self._saved.note else ""))


def print_report(report: Any, *, dry_run: bool) -> None:
    """What was done to the operators, to stdout; warnings to stderr."""
    names = sorted(set(report.ops_before) | set(report.ops_after))
    changed = [n for n in names if report.ops_before.get(n, 0) != report.ops_after.get(n, 0)]
    if changed:
        table = table_of("op", "before", "after", right=("before", "after"))
        for name in changed:
            add_row(table, name, str(report.ops_before.get(name, 0)), str(report.ops_after.get(name, 0)))
        add_row(table, "all nodes", str(sum(report.ops_before.values())), str(sum(report.ops_after.values())))
        show(table)
        show("")
    show(outcome(report, dry_run=dry_run))
    for warning in report.warnings:
        say(f"warning: {warning}")
