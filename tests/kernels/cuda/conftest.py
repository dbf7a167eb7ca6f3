import pytest

from tests.support.cuda import emulator as em


@pytest.fixture(scope="session")
def objects(tmp_path_factory):
    """Object files of the unchanged sources, by unit; and those of the host side."""
    return em.objects(tmp_path_factory)


@pytest.fixture(scope="session")
def emulated(objects, tmp_path_factory):
    units, host = objects
    return em.Emulator([*units.values(), *host], tmp_path_factory.mktemp("library") / "emulated.so")


@pytest.fixture
def kernels(emulated):
    """What the contract's tests ask for; there is one for CPU kernels in their own file."""
    yield emulated
    emulated.device()
