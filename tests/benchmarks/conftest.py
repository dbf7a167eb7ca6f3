"""A machine with a GPU, made of stand-ins."""

import os

import pytest

from tests.support.cuda import emulator as em
from tests.support.cuda import rehearsal


@pytest.fixture(scope="session")
def stage(tmp_path_factory):
    """Stand-ins for all that gpu-check needs of a machine with a GPU."""
    units, host = em.objects(tmp_path_factory)
    return rehearsal.Stage.of([*units.values(), *host], tmp_path_factory.mktemp("stage"))


@pytest.fixture(scope="session")
def machine(stage):
    """The environment of a machine with a GPU, and a library that was built with CUDA."""
    environment = os.environ | stage.environment
    del environment["PYTHONPATH"]  # without PyTorch
    return environment, stage.library
