"""Fuzzing of convert: mutated models with residual streams, converted, and compared with what they computed."""

import random
import warnings

import onnx

import rmsnorm_deploy
from rmsnorm_deploy.model.validity import complaint
from tests.fuzz import batches
from tests.fuzz.mutations import mutate, pick
from tests.fuzz.numbers import wrong_numbers
from tests.fuzz.path import fault_of
from tests.support.spellings.graph import F, H
from tests.support.stream_writers import WRITERS
from tests.support.streams import Streams

BATCH = 4
"""Executions of one request: each opens sessions."""
MOST_DIMENSION = 10**5


def seed_model(rng):
    """A model with a residual stream: some writers, norms as operators or spelled out."""
    opset = rng.choice([11, 13, 17, 18, 20, 21, 23])
    g = Streams(opset, H if opset >= 17 and rng.random() < 0.1 else F, rng.randrange(4))
    square, how = rng.choice(["pow", "mul"]), rng.choice(["sub", "add", "added", "difference", "shift"])
    keepdims = rng.choice([0, 1])
    is_operator = opset >= 17 and rng.random() < 0.7

    def norm(x):
        return g.layer_norm(x, bias=rng.random() < 0.7) if is_operator else g.spelled_out(x, square, keepdims, how)

    x = g.embedded()
    if opset >= 17 and g.dtype == F:
        for writer in rng.sample(WRITERS, rng.choice([0, 1, 1, 2])):
            x = x + writer(g, g.op("Tanh", norm(x)))
    return g.finish(g.layers(x, rng.choice([1, 2]), norm), norm)


def mutated(seed, number):
    """The bytes of one execution."""
    rng = random.Random(f"conversion {seed} {number}")
    model = seed_model(rng)
    return model.SerializeToString() if rng.random() < 0.02 else mutate(model, rng)[1]


def kept(seed, number):
    """The file of one execution."""
    return ".onnx", mutated(seed, number)


def _ignored(*what):
    pass


def attempt(data, fuse, count=_ignored):
    """The kind of fault that these bytes show, and the error; empty where there is none."""
    try:
        proto = onnx.ModelProto.FromString(data)
    except Exception:  # a name that is no text: protobuf refuses it, and so does loading
        return "", ""
    before = proto.SerializeToString(deterministic=True)

    def look():
        planned = rmsnorm_deploy.convert(proto, dry_run=True)[1]
        converted, report = rmsnorm_deploy.convert(proto, fuse=fuse)
        if proto.SerializeToString(deterministic=True) != before:
            return "the model was changed", ""
        if (planned.converted, planned.streams) != (report.converted, report.streams):
            return "another proof in the dry run", f"{planned.streams}\n{report.streams}"
        if not report.converted:
            return None
        count("converted")
        sizes = [d.dim_value for v in pick.declared(proto) for d in v.type.tensor_type.shape.dim]
        if any(size > MOST_DIMENSION for size in sizes) or complaint(proto):
            return None  # of an invalid model nothing is promised
        if invalid := complaint(converted):
            return "no longer valid", invalid
        faults = wrong_numbers(proto, converted, "converted", _ignored, count)
        # a node of ours that a mutation has put into the original runs nowhere
        return next((fault for fault in faults if not fault[0].endswith("(nor does the original)")), None)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fault_of(look)


def one(seed, number, folder):
    """One execution by its number."""
    return attempt(mutated(seed, number), fuse=number % 3 == 0)


work = batches.of(one)
