"""The command line: the only room that prints."""

from __future__ import annotations


def main(arguments: list[str] | None = None) -> int:
    """See :func:`rmsnorm_deploy.cli.app.main`; the commands are imported when it is called."""
    from rmsnorm_deploy.cli import app

    return app.main(arguments)
