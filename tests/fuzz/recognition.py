"""Fuzzing of recognition alone: mutated models in memory, without files, forms, saving and running."""

import functools
import random

import onnx

from rmsnorm_deploy.model.load import to_ir
from rmsnorm_deploy.recognise.engine import recognise
from tests.fuzz import batches
from tests.fuzz.mutations import mutate
from tests.fuzz.path import fault_of
from tests.fuzz.seeds import seed_model

OF_ONE_SEED = 40
"""Executions that begin with one model: to make it takes longer than all else."""


@functools.lru_cache(maxsize=4)
def _start(seed, group):
    return seed_model(random.Random(f"recognition {seed} {group}"))


def mutated(seed, number):
    """The bytes of one execution."""
    rng = random.Random(f"recognition {seed} {number} mutated")
    model = onnx.ModelProto()
    model.CopyFrom(_start(seed, number // OF_ONE_SEED))
    return mutate(model, rng)[1]


def kept(seed, number):
    """The file of one execution."""
    return ".onnx", mutated(seed, number)


def said(model, proto):
    """All that recognition says of a model, as text."""
    matches, misses = recognise(model, proto)
    return repr([(m.site, m.parameters, [n.name for n in m.nodes]) for m in matches] + [str(m) for m in misses])


def attempt(data, again):
    """The kind of fault that these bytes show, and the error; empty where there is none."""
    try:
        proto = onnx.ModelProto.FromString(data)
    except Exception:  # a name that is no text: protobuf refuses it, and so does loading
        return "", ""

    def look():
        model = to_ir(proto)
        first = said(model, proto)
        if again and said(model, proto) != first:
            return "another answer the second time", first
        if again and proto.SerializeToString(deterministic=True) != data:
            return "the model was changed", ""
        return None

    return fault_of(look)


def one(seed, number, folder):
    """One execution by its number."""
    return attempt(mutated(seed, number), again=number % 10 == 0)


work = batches.of(one)
