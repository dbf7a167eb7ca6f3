"""The entry point: one command runs; an error becomes two lines and an exit status. Data go to stdout only."""

from __future__ import annotations

import sys

from rmsnorm_deploy.cli.signals import MESSAGE, STATUS, Signals, Terminated
from rmsnorm_deploy.errors import MissingEnvironment, RmsNormDeployError, first_line


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status; the entry point of ``rmsnorm-deploy``.

    Args:
        arguments: without the program's name; those of the process by default, which then ends with the command:
            Ctrl-C ends it at once before the command begins, and no more after it.
    """
    with Signals(process=arguments is None) as signals:
        given = list(sys.argv[1:] if arguments is None else arguments)
        debug = "--debug" in given  # works before and behind the command
        quiet = "--quiet" in given
        return _main([a for a in given if a not in ("--debug", "--quiet")], signals, debug, quiet)


def _main(given: list[str], signals: Signals, debug: bool, quiet: bool) -> int:
    from rmsnorm_deploy.cli.printing import QUIET
    from rmsnorm_deploy.cli.streams import hush, open_streams, silence_stdout

    open_streams()
    QUIET.set(quiet)

    def fail(message: str, hint: str, status: int, debug: bool = debug) -> int:
        signals.finish()
        if "--json" in given:
            # whoever reads the result as data gets the error as data too
            from rmsnorm_deploy.cli.printing import print_json

            try:
                error = {"message": message, "hint": hint, "exit_code": status}
                print_json({"schema_version": 1, "error": error})
                sys.stdout.flush()
            except OSError:
                silence_stdout()
        return _fail(message, hint, status, debug)

    try:
        from rmsnorm_deploy.installed import require_versions

        if "doctor" not in given:  # which says it beside everything else
            require_versions()
        from rmsnorm_deploy.cli import tree  # all that is slow to import

        if not debug:
            hush()
        signals.unwind(_main.__code__)
        status = tree.run(given)
        sys.stdout.flush()
        return status
    except BaseException as error:
        if signals.arrived is not None:  # foreign code may have turned the exception into another one
            return fail(MESSAGE[signals.arrived], "", STATUS[signals.arrived], debug=False)
        if isinstance(error, RmsNormDeployError):
            return fail(error.message, error.hint, error.exit_code)
        if isinstance(error, (KeyboardInterrupt, Terminated)):
            return fail("interrupted", "", 130, debug=False)
        if isinstance(error, (BrokenPipeError, SystemExit)):
            # the reader went away ("| head"), for which rich exits: not an error, but nothing more can be said
            silence_stdout()
            return 141
        if isinstance(error, OSError):
            # files of the user have errors of their own; what is left is the terminal, or the disk behind a redirection
            silence_stdout()
            what = f"cannot write: {error.strerror or error}"
            return _fail(what, "Free some space.", MissingEnvironment.exit_code, debug)
        what = f"unexpected {type(error).__name__}: {first_line(error)}"
        return fail(what, "Run with --debug for the traceback, and please report it.", 70)


def _fail(message: str, hint: str, status: int, debug: bool) -> int:
    from rmsnorm_deploy.cli.printing import say

    if debug and sys.exc_info()[0] is not None:
        import contextlib
        import traceback

        with contextlib.suppress(OSError):
            traceback.print_exc()
    say(f"error: {' '.join(message.split())}")
    if hint:
        say(f"hint: {' '.join(hint.split())}")
    return status
