import pytest

from rmsnorm_deploy.run.library import library_path
from tests.support.contract import instruction_sets, load
from tests.support.cuda import emulator

LIBRARY = load(library_path())


@pytest.fixture(scope="session")
def library():
    return LIBRARY


@pytest.fixture(params=instruction_sets(LIBRARY))
def kernels(library, request):
    """The library with one instruction set chosen."""
    if library.rmsnorm_deploy_cpu_set_isa(request.param.encode()):
        pytest.skip(f"this machine has no {request.param}")
    yield library
    library.rmsnorm_deploy_cpu_set_isa(None)


@pytest.fixture(scope="module", params=[*instruction_sets(LIBRARY), "cuda", "tvm"])
def every_target(request, tmp_path_factory):
    """The contract as each instruction set, CUDA on the emulator, and TVM's schedules keep it."""
    if request.param == "cuda":
        units, host = emulator.objects(tmp_path_factory)
        yield emulator.Emulator([*units.values(), *host], tmp_path_factory.mktemp("library") / "emulated.so")
    elif request.param == "tvm":
        pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")
        from rmsnorm_deploy.tvm.schedules.cpu.writer import CpuSchedule
        from tests.support.tvm.kernels import TvmKernels

        yield TvmKernels(CpuSchedule())
    elif LIBRARY.rmsnorm_deploy_cpu_set_isa(request.param.encode()):
        pytest.skip(f"this machine has no {request.param}")
    else:
        yield LIBRARY
        LIBRARY.rmsnorm_deploy_cpu_set_isa(None)
