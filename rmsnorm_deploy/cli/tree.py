"""The tree of commands, as typer has it."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Annotated

import typer

from rmsnorm_deploy.cli import commands
from rmsnorm_deploy.errors import UsageError

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


def run(arguments: list[str]) -> int:
    """Run a command and return its exit status.

    Raises:
        UsageError: there is no such command, or it takes other arguments.
        KeyboardInterrupt: Ctrl-C arrived, whatever typer makes of it.
    """
    try:
        status = app(args=arguments, obj=tuple(arguments), prog_name="rmsnorm-deploy", standalone_mode=False)
    except typer.Exit as error:
        return error.exit_code
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except Exception as error:
        # newer releases of typer carry click inside, so there is no one class to name
        if not isinstance(error, _click_exception()):
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", None) or "rmsnorm-deploy"
        text = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        raise UsageError(text[:1].lower() + text[1:], f"See '{command} --help'.") from error
    if status == 130:  # newer releases of typer turn Ctrl-C into a status
        raise KeyboardInterrupt
    return int(status or 0)


def _click_exception() -> type[BaseException]:
    return next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _version(wanted: bool) -> None:
    if wanted:
        from rmsnorm_deploy import __version__

        sys.stdout.write(f"rmsnorm-deploy {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; works behind a command as well.")] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", help="No progress, and only errors and warnings on stderr; works behind a command, too."
        ),
    ] = False,
) -> None:
    pass  # typer needs the function; the options have acted by now


def _add_commands() -> None:
    """Every module of ``cli/commands`` is a command of its name."""
    names = [found.name for found in pkgutil.iter_modules(commands.__path__)]
    modules = {name: importlib.import_module(f"{commands.__name__}.{name}") for name in names}
    for name, module in sorted(modules.items(), key=lambda item: (item[1].ORDER, item[0])):
        app.command(name)(module.command)


_add_commands()
