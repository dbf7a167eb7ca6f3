"""The smallest model that still shows a fault."""

import base64
import time

import onnx

from rmsnorm_deploy.model.graphs import graphs_of, nodes_of
from tests.fuzz.models import findings_of
from tests.fuzz.process import Worker

TRIES, SECONDS = 500, 25
"""Most tries, and most time, for one fault."""
LARGE = 60_000
"""Bytes of a model that takes too long to try so often."""


def _lists(model):
    """Every list of a model, from the coarsest to the finest."""
    yield from (model.functions, model.training_info, model.metadata_props)
    for graph in graphs_of(model):
        yield from (graph.node, graph.value_info, graph.sparse_initializer, graph.initializer, graph.output)
        yield from (graph.input, graph.metadata_props)
    for function in model.functions:
        yield from (function.node, function.value_info, function.attribute)
    for node in nodes_of(model):
        yield from (node.attribute, node.metadata_props)


def _without(model, place, first, count):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    lists = list(_lists(copy))
    if place >= len(lists) or first >= len(lists[place]):
        return None
    del lists[place][first : first + count]
    return copy


def _texts(model):
    """The model without what does nothing."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for name in ("producer_name", "producer_version", "doc_string", "model_version"):
        copy.ClearField(name)
    for node in nodes_of(copy):
        node.ClearField("doc_string")
    return copy


def minimise(data, shows):
    """The bytes of the smallest model found for which ``shows(bytes)`` is true."""
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception:  # bytes that are no message are as small as they are
        return data
    if not shows(model.SerializeToString()):
        return data  # what protobuf does not write, such as a name that is not text

    def attempt(smaller):
        nonlocal model
        if smaller is not None and shows(smaller.SerializeToString()):
            model = smaller
            return True
        return False

    attempt(_texts(model))
    while True:
        before = model.ByteSize()
        place = 0
        while place < len(lists := list(_lists(model))):
            step = max(1, len(lists[place]))
            while step:
                first = 0
                while first < len(list(_lists(model))[place]):
                    if not attempt(_without(model, place, first, step)):
                        first += step
                    if place >= len(list(_lists(model))):
                        break
                if place >= len(list(_lists(model))):
                    break
                step //= 2
            place += 1
        if model.ByteSize() == before:
            return model.SerializeToString(deterministic=True)


def minimised(data, seed, step, kind):
    """The smallest model that shows the fault ``kind`` at ``step``, and whether ``data`` shows it at all."""
    tries, until = TRIES, time.monotonic() + SECONDS
    with Worker("tests.fuzz.models") as worker:

        def shows(smaller):
            nonlocal tries
            tries -= 1
            if tries < 0 or time.monotonic() > until:
                return False
            request = {
                "data": base64.b64encode(smaller).decode(),
                "seed": seed,
                "thorough": step.startswith("run"),
            }
            return any((s, k) == (step, kind) for s, k, _ in findings_of(worker, request)[0])

        return minimise(data, shows) if len(data) < LARGE and shows(data) else data
