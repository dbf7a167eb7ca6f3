"""Functions that call each other until nobody could write them out cost neither memory nor time."""

import itertools
import json
import subprocess
import sys

import pytest
from onnx import TensorProto, helper

import rmsnorm_deploy
from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.model.calls import MOST_LEVELS, Calls, callers_first, require_bounded

DOMAIN = "functions"
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]


def function(name, nodes, attributes=()):
    return helper.make_function(DOMAIN, name, ["x"], ["y"], nodes, OPSETS, attributes=list(attributes))


def call(name, x="x", y="y", **attributes):
    node = helper.make_node(name, [x], [y], domain=DOMAIN)
    for key, value in attributes.items():
        attribute = node.attribute.add(name=key, type=1)
        if isinstance(value, str):
            attribute.ref_attr_name = value
        else:
            attribute.f = value
    return node


def norm(epsilon=1e-5):
    nodes = [
        helper.make_node("Constant", [], ["e"], value_float=0.0),
        helper.make_node("Mul", ["x", "x"], ["s"]),
        helper.make_node("ReduceMean", ["s"], ["m"], axes=[-1]),
        helper.make_node("Add", ["m", "e"], ["a"]),
        helper.make_node("Sqrt", ["a"], ["r"]),
        helper.make_node("Div", ["x", "r"], ["y"]),
    ]
    value = nodes[0].attribute[0]
    if isinstance(epsilon, str):
        value.ClearField("f")
        value.ref_attr_name = epsilon
    else:
        value.f = epsilon
    return nodes


def model(functions, **attributes):
    shape = ["b", 8]
    graph = helper.make_graph(
        [call("f0", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=9, functions=functions)


def levels(depth, times):
    """``depth`` functions, each of which calls the next one ``times`` times; the last holds a norm."""
    found = []
    for i in range(depth - 1):
        values = ["x", *(f"t{k}" for k in range(times - 1)), "y"]
        found.append(function(f"f{i}", [call(f"f{i + 1}", a, b) for a, b in itertools.pairwise(values)]))
    return model([*found, function(f"f{depth - 1}", norm())])


def attributes_multiplied(depth, count):
    """Each function hands its attributes on twice, once with another one replaced."""
    names = [f"a{i}" for i in range(count)]
    handed = {name: name for name in names}
    found = []
    for i in range(depth - 1):
        other = handed | {names[i % count]: 1e-5 * (i + 1)}
        nodes = [call(f"f{i + 1}", "x", "t", **handed), call(f"f{i + 1}", "t", "y", **other)]
        found.append(function(f"f{i}", nodes, names))
    last = [helper.make_node("Constant", [], [f"c{n}"]) for n in names[1:]]
    for node, name in zip(last, names[1:], strict=True):
        node.attribute.add(name="value_float", type=1, ref_attr_name=name)
    return model([*found, function(f"f{depth - 1}", [*last, *norm("a0")], names)], **dict.fromkeys(names, 1e-6))


def in_circles():
    return model([function("f0", [call("f1")]), function("f1", [call("f0")])])


def test_functions_come_after_those_that_call_them():
    calls = {"d": [], "a": ["b", "c"], "b": ["d"], "c": ["b", "d"], "e": ["e"], "f": ["g"], "g": ["f"]}
    order = callers_first(calls)
    assert sorted(order) == sorted(calls)
    place = {key: i for i, key in enumerate(order)}
    assert place["a"] < place["c"] < place["b"] < place["d"]


def test_what_a_function_reaches():
    calls = Calls(levels(4, 2))
    assert [f.name for f in calls.reached((DOMAIN, "f2", ""))] == ["f3"]
    assert {f.name for f in calls.reached((DOMAIN, "f0", ""))} == {"f1", "f2", "f3"}


@pytest.mark.parametrize(
    ("given", "bounded"),
    [
        (lambda: levels(10, 2), True),
        (lambda: levels(22, 2), False),
        (lambda: levels(60, 2), False),
        (lambda: levels(MOST_LEVELS - 1, 1), True),
        (lambda: levels(MOST_LEVELS + 2, 1), False),
        (in_circles, False),
    ],
    ids=["ten", "twenty-two", "sixty", "deep", "deeper", "in circles"],
)
def test_a_size_is_found_without_writing_anything_out(given, bounded):
    made = given()
    assert Calls(made).is_bounded is bounded
    if bounded:
        require_bounded(made)
    else:
        with pytest.raises(ModelError, match="functions call each other"):
            require_bounded(made)


def test_a_norm_several_levels_deep_is_fused():
    assert len(rmsnorm_deploy.explain(levels(10, 2)).fused) == 1


WORK = """
import json, re, sys, time
import onnx, rmsnorm_deploy

def peak_mib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

rmsnorm_deploy.explain(onnx.load(sys.argv[1]))
before = peak_mib()
for path in sys.argv[1:]:
    start = time.process_time()
    fused, report = rmsnorm_deploy.fuse(path)
    print(json.dumps([len(report.fused), len(report.near_misses), time.process_time() - start, peak_mib() - before]))
"""


def test_functions_that_multiply_cost_neither_memory_nor_time(tmp_path):
    made = {
        "small": (levels(5, 2), 1, 0),
        "doubled": (levels(22, 2), 0, 1),
        "doubled for ever": (levels(60, 2), 0, 1),
        "deep": (levels(3000, 1), 0, 1),
        "attributes": (attributes_multiplied(12, 12), 0, 1),
        "circles": (in_circles(), 0, 0),
    }
    paths = []
    for name, (proto, _, _) in made.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(proto.SerializeToString())
        paths.append(str(path))
    done = subprocess.run([sys.executable, "-c", WORK, *paths], check=True, capture_output=True, text=True, timeout=100)
    for (name, (_, fused, missed)), line in zip(made.items(), done.stdout.splitlines(), strict=True):
        found_fused, found_missed, seconds, mib = json.loads(line)
        assert (found_fused, found_missed) == (fused, missed), name
        assert seconds < 10, name
        assert mib < 200, name


def test_the_importer_of_tvm_refuses_to_write_it_out():
    pytest.importorskip("tvm")
    from rmsnorm_deploy.tvm import import_onnx

    with pytest.raises(ModelError, match="functions call each other"):
        import_onnx(levels(22, 2))
