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
class Function:
    """A function in the GPU's language, for what TVM has no words for.

    Attributes:
        name: what it is called.
        returns: TVM's name of the type of its result.
        source: its definition.
    """

    name: str
    returns: str
    source: str


@dataclasses.dataclass(frozen=True)
class Pairs:
    """What the language does with two 16-bit values at once, which share one word of 32 bits.

    Attributes:
        low: of a pair, its first value as a float32.
        high: its second value.
        packed: of two float32, the pair, each rounded to nearest even.
        product: of two pairs, each product rounded once.
        total: of two pairs, each sum rounded once.
    """

    low: Function
    high: Function
    packed: Function
    product: Function
    total: Function


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
        pairs: the 16-bit types that it takes two at a time, and how.
        address: of a pointer, its lowest 32 bits, where a kernel may ask whether it is aligned.
        estimates_roots: whether ``T.rsqrt`` is an estimate that costs less than a root and a division, and ``fmaf``
            rounds once, so that one step of Newton's makes a rounded reciprocal of it.
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
    pairs: tuple[tuple[str, Pairs], ...] = ()
    address: Function | None = None
    estimates_roots: bool = False
    architectures: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    architecture_attribute: str = ""
    several: bool = False
    architecture_of: Callable[[Any], str] | None = None
    kernels_beside: bool = False
    fleet: bool = False
    products_as: tuple[tuple[str, str], ...] = ()
    meanings: tuple[Meaning, ...] = ()
