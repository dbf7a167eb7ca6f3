import pytest

from rmsnorm_deploy.run.library import library_path
from tests.support.contract import instruction_sets, load


@pytest.fixture(scope="session")
def library():
    return load(library_path())


@pytest.fixture(params=instruction_sets(load(library_path())))
def kernels(library, request):
    """The library with one instruction set chosen."""
    if library.rmsnorm_deploy_cpu_set_isa(request.param.encode()):
        pytest.skip(f"this machine has no {request.param}")
    yield library
    library.rmsnorm_deploy_cpu_set_isa(None)
