import pytest

from rmsnorm_deploy.run.library import library_path
from tests.support.contract import INSTRUCTION_SETS, load


@pytest.fixture(scope="session")
def library():
    return load(library_path())


@pytest.fixture(params=INSTRUCTION_SETS)
def kernels(library, request):
    """The library with one instruction set chosen."""
    if library.rmsnorm_deploy_cpu_set_isa(request.param.encode()):
        pytest.skip(f"this machine has no {request.param}")
    yield library
    library.rmsnorm_deploy_cpu_set_isa(None)
