import pytest

from tests.support.cuda import emulator as em


@pytest.fixture(scope="session")
def objects(tmp_path_factory):
    """Object files of the unchanged sources, by unit; and those of the host side."""
    if em.compiler() is None:
        pytest.skip("needs a C++ compiler, to compile the CUDA kernels for the host; install g++")
    folder = tmp_path_factory.mktemp("emulated")
    units = em.compile_units(em.ROOT / "ops", em.UNITS, folder)
    return dict(zip(em.UNITS, units, strict=True)), em.compile_host(em.ROOT / "ops", folder)


@pytest.fixture(scope="session")
def emulated(objects, tmp_path_factory):
    units, host = objects
    return em.Emulator([*units.values(), *host], tmp_path_factory.mktemp("library") / "emulated.so")


@pytest.fixture
def kernels(emulated):
    """What the contract's tests ask for; there is one for CPU kernels in their own file."""
    yield emulated
    emulated.device()
