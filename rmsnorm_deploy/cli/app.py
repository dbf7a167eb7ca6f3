"""The command line: arguments in, one library call, its data printed. Data go to stdout, talk to stderr."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import signal
import sys
from typing import Annotated

import typer

from rmsnorm_deploy.cli import commands
from rmsnorm_deploy.cli.printing import print_json, say
from rmsnorm_deploy.cli.streams import Terminated, open_streams, silence_stdout, stop_on_sigterm
from rmsnorm_deploy.errors import MissingEnvironment, RmsNormDeployError, UsageError, first_line

_EPILOG = (
    "Exit codes: 0 done; 1 verification failed or --require not met; 2 usage; 3 model unreadable or unsafe; "
    "4 the environment lacks what was asked for."
)

app = typer.Typer(
    name="rmsnorm-deploy",
    help="Fuse every RMSNorm of an exported ONNX model into one op, check the result, time it.",
    epilog=_EPILOG,
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status; the entry point of ``rmsnorm-deploy``.

    Args:
        arguments: without the program's name; those of the process by default.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given  # works before and behind the command
    given = [a for a in given if a != "--debug"]
    open_streams()
    previous = stop_on_sigterm()

    def fail(message: str, hint: str, status: int, debug: bool) -> int:
        if "--json" in given:
            # whoever reads the result as data gets the error as data too
            with contextlib.suppress(OSError):
                error = {"message": message, "hint": hint, "exit_code": status}
                print_json({"schema_version": 1, "error": error})
                sys.stdout.flush()
        return _fail(message, hint, status, debug)

    try:
        status = app(args=given, prog_name="rmsnorm-deploy", standalone_mode=False)
        sys.stdout.flush()
        if status == 130:  # newer releases of typer turn Ctrl-C into a status
            raise KeyboardInterrupt
        return int(status or 0)
    except RmsNormDeployError as error:
        return fail(error.message, error.hint, error.exit_code, debug)
    except (KeyboardInterrupt, typer.Abort):
        return fail("interrupted", "", 130, debug=False)
    except Terminated:
        return fail("stopped by SIGTERM", "", 143, debug=False)
    except (BrokenPipeError, SystemExit):
        # the reader went away ("| head"), for which typer and rich exit: not an error, but nothing more can be said
        silence_stdout()
        return 141
    except typer.Exit as error:
        return error.exit_code
    except OSError as error:
        # files of the user have errors of their own; what is left is the terminal, or the disk behind a redirection
        silence_stdout()
        return _fail(
            f"cannot write: {error.strerror or error}", "Free some space.", MissingEnvironment.exit_code, debug
        )
    except Exception as error:
        # typer's own usage errors; newer releases carry click inside, so there is no one class to name
        if isinstance(error, _click_exception()):
            command = getattr(getattr(error, "ctx", None), "command_path", None) or "rmsnorm-deploy"
            text = error.format_message().rstrip(".")  # type: ignore[attr-defined]
            return fail(text[:1].lower() + text[1:], f"See '{command} --help'.", UsageError.exit_code, debug)
        what = f"unexpected {type(error).__name__}: {first_line(error)}"
        return fail(what, "Run with --debug for the traceback, and please report it.", 70, debug)
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _click_exception() -> type[BaseException]:
    return next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _fail(message: str, hint: str, status: int, debug: bool) -> int:
    if debug and sys.exc_info()[0] is not None:
        import traceback

        traceback.print_exc()
    say(f"error: {' '.join(message.split())}")
    if hint:
        say(f"hint: {' '.join(hint.split())}")
    return status


def _version(wanted: bool) -> None:
    if wanted:
        from rmsnorm_deploy import __version__

        sys.stdout.write(f"rmsnorm-deploy {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; works behind a command as well.")] = False,
) -> None:
    pass  # typer needs the function; both options have acted by now


def _add_commands() -> None:
    """Every module of ``cli/commands`` is a command of its name."""
    names = [found.name for found in pkgutil.iter_modules(commands.__path__)]
    modules = {name: importlib.import_module(f"{commands.__name__}.{name}") for name in names}
    for name, module in sorted(modules.items(), key=lambda item: (item[1].ORDER, item[0])):
        app.command(name)(module.command)


_add_commands()
