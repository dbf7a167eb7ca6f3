"""Fuzzing with bytes: files that are damaged anywhere, for loading and fusing.

They are chosen at random; ``guided.py`` chooses them by what they reach in the package.
"""

import functools
import random
import warnings

import rmsnorm_deploy
from tests.fuzz import batches
from tests.fuzz.path import fault_of
from tests.fuzz.seeds import seed_model

_PIECES = (
    b"\xff",
    b"\0",
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 9 + b"\x01",
    b"axes",
    b"Mul",
    b"Cast",
    b"",
)


@functools.cache
def seeds(seed):
    """A few small files; the samples are too long for most changes to matter."""
    rng = random.Random(f"octets {seed}")
    return [seed_model(rng).SerializeToString(deterministic=True) for _ in range(40)]


def mutated(data, other, rng):
    """Some bytes changed, removed, doubled, or taken from another file."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 3, 8, 40])):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice([1, 1, 2, 4, 16, 200]))
        how = rng.randrange(8)
        if how == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1 and at < len(data):
            data[at] = rng.randrange(256)
        elif how == 2:
            data[at:end] = b""
        elif how == 3:
            data[at:at] = data[at:end]
        elif how == 4:
            data[at:at] = rng.choice(_PIECES)
        elif how == 5:
            data[at:end] = rng.choice(_PIECES)
        elif how == 6:
            start = rng.randrange(len(other))
            data[at:end] = other[start : start + rng.choice([1, 4, 30, 300])]
        elif rng.random() < 0.1:
            del data[at:]
    return bytes(data)


def octets(seed, number):
    """The bytes of one execution."""
    rng = random.Random(f"octets {seed} {number}")
    known = seeds(seed)
    return mutated(rng.choice(known), rng.choice(known), rng)


def attempt(data, file, form="plugin"):
    """The kind of fault that these bytes show, and the error; empty where there is none."""
    file.write_bytes(data)

    def look():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rmsnorm_deploy.fuse(file, form=form)

    return fault_of(look)


def one(seed, number, folder):
    """One execution by its number."""
    return attempt(octets(seed, number), folder / "m.onnx")


def kept(seed, number):
    """The file of one execution."""
    return ".onnx", octets(seed, number)


work = batches.of(one)
