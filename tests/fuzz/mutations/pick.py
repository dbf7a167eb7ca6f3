"""What mutations choose from: every graph, node, value and tensor of a model, and numbers that hurt."""

import math

from rmsnorm_deploy.model.graphs import graphs_of, nodes_of

INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    4,
    5,
    7,
    8,
    16,
    -2,
    -3,
    127,
    255,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32,
    2**62,
    2**63 - 1,
    -(2**63),
)
FLOATS = (
    *(0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 1e-6, 1e-5, 1e-12, 1e-20, 1e-38, 1e-45, 3.4e38, 1e10),
    *(math.inf, -math.inf, math.nan, 1.0000001, 0.49999997, 2.0000002),
)
SIZES = (0, 1, 2, 3, 7, 8, 16, 33, -1, -5, 2**31, 2**40, 2**62, 2**63 - 1)


def harmless(function):
    """Marks a mutation after which most models still run."""
    function.harmless = True
    return function


def graph(model, rng):
    """Any graph; most often the main one."""
    return model.graph if rng.random() < 0.7 else rng.choice(list(graphs_of(model)))


def holder(model, rng):
    """Anything that has nodes: a graph or a local function."""
    return rng.choice(list(model.functions)) if model.functions and rng.random() < 0.2 else graph(model, rng)


def node(model, rng):
    """Any node, those of subgraphs and functions included."""
    return rng.choice(list(nodes_of(model)))


def names(model):
    """The names of all values."""
    found = {n for node in nodes_of(model) for n in (*node.input, *node.output) if n}
    found |= {v.name for g in graphs_of(model) for v in (*g.input, *g.output, *g.initializer)}
    return sorted(found)


def declared(model):
    """Every declaration of a value's type."""
    found = [v for g in graphs_of(model) for v in (*g.input, *g.output, *g.value_info)]
    return found + [v for f in model.functions for v in f.value_info]


def all_tensors(model):
    """Every tensor: initializers and attributes."""
    found = [t for g in graphs_of(model) for t in g.initializer]
    return found + [a.t for node in nodes_of(model) for a in node.attribute if a.HasField("t")]


def new_name(model, rng, hint):
    """A name that nothing has."""
    taken = set(names(model)) | {n.name for n in nodes_of(model)}
    while (name := f"{hint}_{rng.randrange(10**6)}") in taken:
        pass
    return name
