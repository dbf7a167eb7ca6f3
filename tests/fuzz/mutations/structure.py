"""Structure: subgraphs, functions, a second model beside the first, imports, wiring of the whole."""

import onnx
from onnx import helper

from rmsnorm_deploy.model.graphs import graphs_of, nodes_of
from tests.fuzz.mutations import pick
from tests.fuzz.mutations.pick import harmless


@harmless
def into_an_if(model, rng):
    """The last nodes move into both branches of an If."""
    graph = model.graph
    at = rng.randrange(len(graph.node))
    moved = list(graph.node[at:])
    made = {n for node in moved for n in node.output}
    outputs = [v for v in graph.output if v.name in made]
    if not outputs:
        return
    branches = []
    for branch in ("then", "else"):
        part = helper.make_graph([], branch, [], [])
        part.node.extend(moved)
        part.output.extend(outputs)
        for node in nodes_of(part):
            for names in (node.input, node.output):
                names[:] = [f"{branch}_{n}" if n in made else n for n in names]
        for value in part.output:
            value.name = f"{branch}_{value.name}"
        branches.append(part)
    del graph.node[at:]
    condition = pick.new_name(model, rng, "condition")
    if rng.random() < 0.5:
        graph.initializer.append(helper.make_tensor(condition, 9, [], [rng.random() < 0.5]))
    else:
        graph.input.append(helper.make_tensor_value_info(condition, 9, []))
    names = [v.name for v in outputs]
    graph.node.append(helper.make_node("If", [condition], names, then_branch=branches[0], else_branch=branches[1]))


def nested(model, rng):
    """An If in an If in an If."""
    value = rng.choice(pick.names(model))
    graph = helper.make_graph(
        [helper.make_node("Identity", [value], ["deep"])],
        "deepest",
        [],
        [helper.make_tensor_value_info("deep", 1, None)],
    )
    for depth in range(rng.choice([2, 5, 12, 25])):
        node = helper.make_node("If", [value], [f"deep_{depth}"], then_branch=graph, else_branch=graph.__class__())
        if depth < 5 and rng.random() < 0.5:
            node.attribute[1].g.CopyFrom(graph)
        graph = helper.make_graph([node], "level", [], [helper.make_tensor_value_info(f"deep_{depth}", 1, None)])
    model.graph.node.extend(graph.node)


def subgraph_parts(model, rng):
    """A subgraph loses or gets inputs and outputs."""
    graph = rng.choice(list(graphs_of(model))[1:])
    values = rng.choice([graph.input, graph.output])
    if values and rng.random() < 0.5:
        del values[rng.randrange(len(values))]
    else:
        values.append(helper.make_tensor_value_info(rng.choice(pick.names(model)), 1, None))


def subgraph_elsewhere(model, rng):
    """Any node carries a graph."""
    graph = helper.make_graph(list(model.graph.node), "again", [], list(model.graph.output))
    pick.node(model, rng).attribute.append(helper.make_attribute(rng.choice(["body", "then_branch", "g"]), graph))


def _extract(model, rng, domain, name):
    """Some nodes as a local function, and the call of it."""
    graph = model.graph
    first = rng.randrange(len(graph.node))
    last = rng.randint(first + 1, len(graph.node))
    part = list(graph.node[first:last])
    made = {n for node in part for n in node.output if n}
    read_later = {n for node in graph.node[last:] for n in node.input} | {v.name for v in graph.output}
    inputs = list(dict.fromkeys(n for node in part for n in node.input if n and n not in made))
    outputs = [n for n in dict.fromkeys(n for node in part for n in node.output) if n in read_later]
    if not outputs:
        return
    constants = {t.name: t for t in graph.initializer}
    if rng.random() < 0.5:  # constants move in
        inside = [n for n in inputs if n in constants]
        part = [helper.make_node("Constant", [], [n], value=constants[n]) for n in inside] + part
        inputs = [n for n in inputs if n not in constants]
    function = helper.make_function(domain, name, inputs, outputs, part, list(model.opset_import))
    del graph.node[first:last]
    graph.node.insert(first, helper.make_node(name, inputs, outputs, domain=domain))
    model.functions.append(function)
    if domain not in {o.domain for o in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(domain, 1))


@harmless
def into_a_function(model, rng):
    _extract(model, rng, "local", f"part_{rng.randrange(1000)}")


def into_a_function_of_our_name(model, rng):
    _extract(model, rng, "rmsnorm_deploy", rng.choice(["RMSNorm", "AddRMSNorm", "GeneralRMSNorm", "Other"]))


def function_parts(model, rng):
    """A function calls itself, forgets its imports, is there twice, has other inputs."""
    function = rng.choice(model.functions)
    how = rng.randrange(6)
    if how == 0:
        call = helper.make_node(function.name, list(function.input), list(function.output), domain=function.domain)
        function.node.append(call)
    elif how == 1:
        del function.opset_import[rng.randrange(len(function.opset_import))]
    elif how == 2:
        model.functions.append(function)
    elif how == 3:
        del rng.choice([function.input, function.output])[0]
    elif how == 4:
        rng.choice([function.attribute, function.input, function.output]).append(rng.choice(["axis", "a", "x", ""]))
    else:
        function.domain, function.name = rng.choice([("", "Mul"), ("rmsnorm_deploy", "RMSNorm"), ("", ""), ("x", "F")])


def drop_functions(model, rng):
    del model.functions[rng.randrange(len(model.functions)) :]


def imports(model, rng):
    """Versions that do not exist, twice, or not at all."""
    how = rng.randrange(4)
    if how == 0:
        rng.choice(model.opset_import).version = rng.choice([*range(1, 28), 0, -1, 2**40, 2**63 - 1])
    elif how == 1:
        del model.opset_import[rng.randrange(len(model.opset_import))]
    elif how == 2:
        domain = rng.choice(["", "ai.onnx", "rmsnorm_deploy", "com.microsoft", "x"])
        model.opset_import.append(helper.make_opsetid(domain, rng.choice([1, 2, 17, 18, 23, 0, -1])))
    else:
        model.ir_version = rng.choice([*range(14), -1, 2**40])


@harmless
def another_opset(model, rng):
    for entry in model.opset_import:
        if entry.domain == "":
            entry.version = rng.choice([11, 12, 13, 15, 17, 18, 19, 20, 21, 22, 23, 24])
            model.ir_version = 10 if entry.version > 20 else model.ir_version


@harmless
def a_second_norm(model, rng):
    """The model twice: the second one reads what the first one gives."""
    second = onnx.ModelProto()
    second.CopyFrom(model)
    produced = [v for v in model.graph.output]
    renames = {v.name: rng.choice(produced).name if rng.random() < 0.7 else v.name for v in second.graph.input}
    for graph in graphs_of(second):
        for item in (*graph.initializer, *graph.value_info, *graph.output):
            renames.setdefault(item.name, f"second_{item.name}")
            item.name = renames[item.name]
    for node in nodes_of(second):
        node.name = f"second_{node.name}"
        node.input[:] = [n and renames.setdefault(n, f"second_{n}") for n in node.input]
        node.output[:] = [n and renames.setdefault(n, f"second_{n}") for n in node.output]
    model.graph.node.extend(second.graph.node)
    model.graph.initializer.extend(second.graph.initializer)
    model.graph.output.extend(second.graph.output)


def cycle(model, rng):
    graph = pick.graph(model, rng)
    first, last = sorted(rng.sample(range(len(graph.node)), 2))
    graph.node[first].input[0] = graph.node[last].output[0]


def no_outputs(model, rng):
    rng.choice([model.graph.output, model.graph.input, model.graph.node, model.graph.initializer]).clear()


def rename(model, rng):
    """One value gets another name, everywhere: a strange one, or one that is taken."""
    old, new = (
        rng.choice(pick.names(model)),
        rng.choice([*pick.names(model), " ", "\n", "é", "n" * 3000, "a\0b", "%s{}"]),
    )
    for graph in graphs_of(model):
        for item in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
            if item.name == old:
                item.name = new
    for node in nodes_of(model):
        node.input[:] = [new if n == old else n for n in node.input]
        node.output[:] = [new if n == old else n for n in node.output]


@harmless
def texts(model, rng):
    model.graph.name = rng.choice(["", "g", "\0", "x" * 3000])
    model.doc_string = rng.choice(["", "text\n" * 100])
    model.producer_name = rng.choice(["", "pytorch", "\u202e"])


def training(model, rng):
    part = model.training_info.add()
    part.algorithm.CopyFrom(model.graph)
    part.initialization.CopyFrom(model.graph)


def metadata(model, rng):
    item = rng.choice([model, model.graph, *model.graph.node])
    for _ in range(2):
        item.metadata_props.add(key=rng.choice(["", "k", "pkg.onnxscript"]), value="v" * rng.choice([0, 5, 1000]))
