"""Load: many threads on one session, many norms, and sessions after a fork."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy

WIDTH = 64


def many_norms(count):
    """A model of ``count`` norms of x [rows, 64], all three operators, each with a scale of its own; y has them all."""
    rng = np.random.default_rng(7)
    nodes, weights, parts = [], [], []
    for i in range(count):
        kind = ("RMSNorm", "AddRMSNorm", "GeneralRMSNorm")[i % 3]
        weights.append(numpy_helper.from_array(rng.standard_normal(WIDTH).astype(np.float32), f"w{i}"))
        before = f"y{i - 1}" if i else "x"
        inputs, outputs = [before, f"w{i}"], [f"y{i}"]
        if kind == "AddRMSNorm":
            inputs, outputs = [before, "x", f"w{i}"], [f"y{i}", f"s{i}"]
        more = {}
        if kind == "GeneralRMSNorm":
            inputs, more = [before, f"w{i}", "w0"], {"epsilon_outside": 1e-3}
        nodes.append(helper.make_node(kind, inputs, outputs, domain="rmsnorm_deploy", axes=[-1], **more))
        parts.append(f"y{i}")
    nodes.append(helper.make_node("Concat", parts, ["y"], axis=-1))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", WIDTH * count])],
        weights,
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("rmsnorm_deploy", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def session_of(model, threads=2):
    """A session with the library."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return rmsnorm_deploy.session(model, options)


def concurrent(threads, calls, norms=300):
    """Calls of norms by many threads on one session: how many there were, and how many runs had other bits.

    A call is one norm of one run. Each thread runs other shapes; the right bits are those of a session with one thread
    that runs alone.
    """
    model = many_norms(norms)
    rng = np.random.default_rng(3)
    feeds = [rng.standard_normal((rows, WIDTH)).astype(np.float32) for rows in (1, 2, 3, 5, 8, 13, 33, 64)]
    alone = session_of(model, 1)
    right = [alone.run(None, {"x": x})[0].tobytes() for x in feeds]
    together = session_of(model)
    runs = -(-calls // norms // threads)
    barrier = threading.Barrier(threads)

    def work(first):
        barrier.wait()
        different = 0
        for i in range(runs):
            which = (first + i) % len(feeds)
            different += together.run(None, {"x": feeds[which]})[0].tobytes() != right[which]
        return different

    with ThreadPoolExecutor(threads) as pool:
        different = sum(pool.map(work, range(threads)))
    return runs * threads * norms, different


def registered(threads):
    """Sessions that many threads register and open at once: how many compute something else."""
    model = many_norms(3)
    x = np.linspace(-1, 1, 2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
    barrier, shared = threading.Barrier(threads), ort.SessionOptions()

    def work(_):
        options = ort.SessionOptions()
        barrier.wait()
        rmsnorm_deploy.register(shared, override_builtin=True)
        rmsnorm_deploy.register(options)
        opened = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return opened.run(None, {"x": x})[0].tobytes()

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(work, range(threads)))
    return sum(f != session_of(model, 1).run(None, {"x": x})[0].tobytes() for f in found)


def computed(threads=1):
    """The bits that a new session in this process computes."""
    x = np.linspace(-1, 1, 2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
    return session_of(many_norms(6), threads).run(None, {"x": x})[0].tobytes()
