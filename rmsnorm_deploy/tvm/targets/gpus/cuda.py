"""NVIDIA's GPUs, from Turing on, which nvcc 13 can compile for."""

from __future__ import annotations

from typing import Any

from rmsnorm_deploy.tvm.targets.gpu import Function, Gpu, Pairs


def _architecture_of(device: Any) -> str:
    return f"sm_{str(device.compute_version).replace('.', '')}"


def _function(name: str, returns: str, arguments: str, *body: str, header: str = "") -> Function:
    text = "".join(f"  {line}\n" for line in body)
    result = {"float32": "float", "uint32": "unsigned"}[returns]
    # A kernel of words alone would otherwise have no header of the type that is in them.
    include = f"#include <{header}>\n" if header else ""
    return Function(name, returns, f"{include}__device__ inline {result} {name}({arguments}) {{\n{text}}}\n")


def _pairs(name: str, kind: str, header: str, rounded: str, low: str, high: str) -> Pairs:
    """The functions for one type: from sm_80 on each is one instruction, before that what CUDA's headers make of it."""

    def of(what: str, returns: str, arguments: str, *body: str) -> Function:
        return _function(f"{what}_{name}", returns, arguments, *body, header=header)

    def of_two(what: str, function: str) -> Function:
        two = f"const {kind} x = *(const {kind}*)&a, y = *(const {kind}*)&b;"
        return of(what, "uint32", "unsigned a, unsigned b", two, f"const {kind} result = {function}(x, y);", bits)

    bits = "return *(const unsigned*)&result;"
    return Pairs(
        of("low", "float32", "unsigned pair", f"return {low};"),
        of("high", "float32", "unsigned pair", f"return {high};"),
        of("packed", "uint32", "float a, float b", f"const {kind} result = {rounded}(a, b);", bits),
        of_two("product", "__hmul2_rn"),  # not to be put together with a sum
        of_two("total", "__hadd2_rn"),
    )


_HALF = "*(const __half2*)&pair"
# In the higher half of a word, a bfloat16 is a float32 already. CUDA's own functions take two instructions for it.
_PAIRS = (
    (
        "bfloat16",
        _pairs(
            *("bfloat16", "__nv_bfloat162", "cuda_bf16.h", "__floats2bfloat162_rn"),
            *("__uint_as_float(pair << 16)", "__uint_as_float(pair & 0xffff0000u)"),
        ),
    ),
    (
        "float16",
        _pairs(
            *("float16", "__half2", "cuda_fp16.h", "__floats2half2_rn"),
            *(f"__low2float({_HALF})", f"__high2float({_HALF})"),
        ),
    ),
)

GPU = Gpu(
    kind="cuda",
    name="CUDA",
    threads=1024,
    runtime="TVM loads it where the libraries of an NVIDIA driver (libcuda.so.1) and of CUDA 13 (libcudart.so.13) are.",
    warp=32,
    shuffle_bits=64,
    shuffles_by_xor=True,
    rounds_bfloat16=True,
    pairs=_PAIRS,
    address=_function("address", "uint32", "const void* pointer", "return (unsigned)(size_t)pointer;"),
    estimates_roots=True,
    architectures=(
        *("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90"),
        *("sm_100", "sm_103", "sm_110", "sm_120", "sm_121"),
    ),
    usual=("sm_80", "sm_90"),
    architecture_attribute="arch",
    several=True,
    architecture_of=_architecture_of,
    kernels_beside=True,
    products_as=(("kind", "cuda"), ("arch", "sm_60")),
)
