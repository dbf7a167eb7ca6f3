"""Changes of a model: each takes one apart or adds to one, at random and reproducibly.

A mutation is ``(model, rng) -> anything``; it changes the model in place, and changes nothing where it does not fit.
"""

import contextlib

from tests.fuzz.mutations import nodes, structure, tensors, values

MUTATIONS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": function
    for module in (nodes, structure, tensors, values)
    for name, function in vars(module).items()
    if callable(function) and not name.startswith("_") and function.__module__ == module.__name__
}
HARMLESS = tuple(name for name, function in MUTATIONS.items() if getattr(function, "harmless", False))
"""Mutations after which most models still run: those find wrong numbers, where the others find errors."""


def mutate(model, rng):
    """Change ``model`` a few times; the names of what was done, and the model's bytes."""
    only_harmless = rng.random() < 0.5
    names = HARMLESS if only_harmless else tuple(MUTATIONS)
    done = []
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4, 6])):
        name = rng.choice(names)
        # what an earlier change has left may be no place for this one
        with contextlib.suppress(Exception):
            MUTATIONS[name](model, rng)
            done.append(name)
    data = model.SerializeToString(deterministic=True)
    if not only_harmless and rng.random() < 0.03:
        data = _not_text(model, data, rng)
        done.append("not_text")
    return done, data


def _not_text(model, data, rng):
    """A name that is not valid UTF-8, which protobuf's Python side does not write."""
    names = [n for node in model.graph.node for n in (*node.output, *node.input, node.name, node.op_type) if n]
    names += [v.name for v in (*model.graph.input, *model.graph.output) if v.name]
    if not names:
        return data
    name = rng.choice(names).encode()
    return data.replace(name, b"\xff" + name[1:])
