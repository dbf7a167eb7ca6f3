"""Fuzzing with bytes: files that are damaged anywhere, for loading and fusing.

They are chosen at random; ``guided.py`` chooses them by what they reach in the package.
"""

import functools
import random
import sys
import tempfile
import warnings
from pathlib import Path

import rmsnorm_deploy
from rmsnorm_deploy.errors import RmsNormDeployError
from tests.fuzz.path import place_of
from tests.fuzz.process import Worker
from tests.fuzz.seeds import seed_model

BATCH = 25
"""Executions of one request."""
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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rmsnorm_deploy.fuse(file, form=form)
    except RmsNormDeployError:
        pass
    except Exception as error:
        return f"{type(error).__name__} in {place_of(error)}", str(error)
    return "", ""


def work(request, say):
    """A batch of executions by their numbers."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "m.onnx"
        for number in range(request["first"], request["first"] + request["count"]):
            say(str(number))
            kind, text = attempt(octets(request["seed"], number), file)
            if kind:
                found.append((number, kind, text))
    return found


def campaign(seed, first, count, kept, report=sys.stdout.write):
    """Run ``count`` files; the first one of each fault is written to ``kept``. The faults."""
    faults = {}
    with Worker("tests.fuzz.octets") as worker:
        number, end = first, first + count
        while number < end:
            request = {"seed": seed, "first": number, "count": min(BATCH, end - number)}
            result = worker(request)
            found = [tuple(f) for f in result.answer or ()]
            number += request["count"]
            if result.death:
                at = int(result.step or request["first"])
                found.append((at, result.death, ""))
                if result.answer is None:
                    number = at + 1
            for at, kind, text in found:
                if kind not in faults:
                    faults[kind] = at
                    report(f"FOUND at file {at}: {kind}\n{text}\n")
                    if kept is not None:
                        Path(kept).mkdir(parents=True, exist_ok=True)
                        (Path(kept) / f"octets-{seed}-{at}.onnx").write_bytes(octets(seed, at))
    return faults
