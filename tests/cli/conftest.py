"""What every test of the command line starts with."""

import pytest

from rmsnorm_deploy.cli import app as cli


@pytest.fixture
def run(capsys):
    """Runs the command line in this process: status, stdout, stderr."""

    def call(*arguments):
        status = cli.main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call
