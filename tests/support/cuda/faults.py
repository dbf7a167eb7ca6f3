"""Plants faults in copies of the CUDA sources, one at a time, and expects tests to catch them."""

import dataclasses
import shutil
from collections.abc import Callable

import pytest

from tests.support.cuda import emulator as em

PLAN = "plan"
"""In the place of a unit of kernels: everything that is not a kernel."""


@dataclasses.dataclass
class Fault:
    name: str
    file: str
    old: str  # occurs exactly once
    new: str
    unit: str  # the only one that is compiled again
    test: Callable
    arguments: tuple = ()
    message: str | None = None  # what the emulator has to say; None: the result is wrong


def caught(objects, fault, folder):
    """Assert that the fault's test catches it; ``objects`` are those of the unchanged sources."""
    units, host = objects
    ops = folder / "ops"
    for name in ("cuda", "contract", "include"):
        shutil.copytree(em.ROOT / "ops" / name, ops / name)
    source = ops / "cuda" / fault.file
    text = source.read_text()
    assert text.count(fault.old) == 1, "the fault no longer fits the source"
    source.write_text(text.replace(fault.old, fault.new))
    if fault.unit == PLAN:
        files = [*units.values(), *em.compile_host(ops, folder / "objects")]
    else:
        changed = em.compile_units(ops, [fault.unit], folder / "objects", em.UNOPTIMISED)
        files = [*changed, *(file for unit, file in units.items() if unit != fault.unit), *host]
    faulty = em.Emulator(files, folder / "faulty.so")
    with pytest.raises(AssertionError) as found:
        fault.test(faulty, *fault.arguments)
    if fault.message:
        assert isinstance(found.value, em.EmulatorError)
        assert fault.message in str(found.value)
