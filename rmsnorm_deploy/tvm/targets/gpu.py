"""One kind of GPU: what a schedule may use, and what it takes to compile for it and to run on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from rmsnorm_deploy.errors import RmsNormDeployError


@dataclasses.dataclass(frozen=True)
class Meaning:
    """What an error of TVM's compiler means for one kind of GPU.

    Attributes:
        words: any of them in TVM's message is enough to know it.
        error: the kind of error that it is for the user.
        message: what is wrong.
        hint: what to do about it.
    """

    words: tuple[str, ...]
    error: type[RmsNormDeployError]
    message: str
    hint: str


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One kind of GPU; every file in ``gpus`` has one, with the name ``GPU``.

    Attributes:
        kind: TVM's name of the target.
        name: what the programming interface is called.
        runtime: what to do where TVM has no runtime for it.
        dtypes: types that its language can compute with or store.
        vector_bytes: the widest access to memory.
        vector_lanes: most values in one access.
        threads: most threads in a block.
        warp: threads that exchange values without memory, on every such device; 1 where the language cannot do that.
        shuffle_bits: most bits that one such exchange moves.
        shuffles_by_xor: whether threads can exchange values with those whose place differs in one bit.
        rounds_bfloat16: whether the language rounds to bfloat16 itself; else that is done in integers.
        architectures: instruction sets that a model can be compiled for, the oldest first; empty if there is no choice.
        usual: those that are compiled for by default.
        architecture_attribute: what TVM's target calls the instruction set.
        several: whether one compiled model can be for several instruction sets.
        architecture_of: the instruction set of a ``tvm.runtime.Device``; None where it cannot be asked.
        kernels_beside: whether nvcc compiles the kernels to a file beside the library; else they are in the library.
        fleet: whether the devices of TVM's RPC tracker can measure kernels: all of a kernel is in its library.
        products_as: attributes of the target that matrix products are scheduled for instead, so that no matrix unit is
            used: TVM 0.27 ends the process when it schedules those.
        meanings: of TVM's errors.
    """

    kind: str
    name: str
    runtime: str
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16", "float64")
    vector_bytes: int = 16
    vector_lanes: int = 8
    threads: int = 256
    warp: int = 1
    shuffle_bits: int = 32
    shuffles_by_xor: bool = False
    rounds_bfloat16: bool = False
    architectures: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    architecture_attribute: str = ""
    several: bool = False
    architecture_of: Callable[[Any], str] | None = None
    kernels_beside: bool = False
    fleet: bool = False
    products_as: tuple[tuple[str, str], ...] = ()
    meanings: tuple[Meaning, ...] = ()
