"""Whether a fused model computes what the original computes, as far as the original says what that is.

A mutated model may be ill-conditioned, so its own answers set the tolerance: how far the original is from its float64
run, and how far its results move when every input and weight moves by a unit in the last place.
"""

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, numpy_helper

from rmsnorm_deploy import session
from rmsnorm_deploy.check.exact import Truth
from rmsnorm_deploy.check.ulp import row_ulp
from rmsnorm_deploy.errors import RmsNormDeployError
from rmsnorm_deploy.model.external import external_tensors
from rmsnorm_deploy.model.graphs import nodes_of
from rmsnorm_deploy.op.dtypes import FLOAT32, TYPES, float_type
from rmsnorm_deploy.run.inputs import adversarial_inputs, is_float, make_inputs
from rmsnorm_deploy.run.runnable import Runnable
from tests.fuzz.mutations import pick
from tests.support.run import outputs

MOST_ELEMENTS = 100_000
JUMPS = frozenset(
    {"Floor", "Ceil", "Round", "Sign", "ArgMax", "ArgMin", "TopK", "Greater", "Less", "Equal", "GreaterOrEqual"}
    | {"LessOrEqual", "Not", "And", "Or", "Where", "NonZero", "IsNaN", "IsInf", "Mod", "Unique", "OneHot", "Loop"}
)
"""Operators that a rounding may send elsewhere."""
UNITS = {TensorProto.FLOAT: 48, TensorProto.FLOAT16: 6, TensorProto.BFLOAT16: 6, TensorProto.DOUBLE: 2.0**34}
"""Allowed in any case, in units of the row's largest value.

In float64, epsilon and floor are rounded to float32, and a bias may cancel.
"""
FLOATS = {t.number for t in TYPES}


def _jumps(model):
    casts = [a.i for n in nodes_of(model) if n.op_type == "Cast" for a in n.attribute if a.name == "to"]
    return any(n.op_type in JUMPS for n in nodes_of(model)) or any(to not in FLOATS for to in casts)


def _moved_array(array, rng, bits):
    """Every number off by a unit, but for 2, 0.5 and their like: no negative number has a power of 2.0000002."""
    if not is_float(array):
        return array
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        moved = wide * (1 + rng.choice([-1.0, 1.0], wide.shape) * 2.0**-bits)
        return np.where(np.round(2 * wide) == 2 * wide, wide, moved).astype(array.dtype)


def _moved(model, feeds, bits, seed):
    """The model and its inputs with every float off by a unit or so."""
    rng = np.random.default_rng(seed)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in pick.all_tensors(copy):
        if tensor.data_type in FLOATS:
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(_moved_array(array, rng, bits), tensor.name))
    return copy, {k: _moved_array(v, rng, bits) for k, v in feeds.items()}


def _narrowest(model):
    kinds = {t.data_type for t in pick.all_tensors(model)} | {
        v.type.tensor_type.elem_type for v in pick.declared(model)
    }
    kinds |= {a.i for n in nodes_of(model) if n.op_type == "Cast" for a in n.attribute if a.name == "to"}
    return min((t for t in TYPES if t.number in kinds), key=lambda t: t.mantissa_bits, default=FLOAT32)


def _wide(array):
    return np.asarray(array).astype(np.float64)


def _rows(difference):
    """The largest difference of each row; where one is not a number, it allows everything."""
    d = np.where(np.isfinite(difference), difference, np.inf)
    return d.max(axis=-1, keepdims=True, initial=0) if d.ndim else d


def _off(original, exact, moved, got, kind, units):
    """How many times the tolerance the worst element is off; 0 where nothing can be said."""
    a, g = _wide(original), _wide(got)
    # only what is finite however one looks at it can be compared
    known = np.isfinite(a)
    allowed = units * row_ulp(a, kind, -1 if a.ndim else None)
    with np.errstate(all="ignore"):
        for other, factor in ((exact, 8), *((m, 32) for m in moved)):
            if other is None or np.shape(other) != a.shape:
                continue
            o = _wide(other)
            known &= np.isfinite(o)
            allowed = allowed + factor * _rows(np.abs(a - o))
        error = np.where(known, np.where(np.isfinite(g), np.abs(g - a), np.inf), 0)
        worst = np.where(known & (error > 0), error / np.maximum(allowed, 1e-300), 0)
        worst = np.where(np.isnan(worst), 0, worst)  # inf / inf: everything is allowed there
    if not known.any():
        return 0.0
    return float(worst.max(initial=0))


WAYS = {
    "by its bodies": (False, None),
    "by its bodies, optimised": (True, None),
    "with the library": (False, "library"),
    "with the library, optimised": (True, "library"),
    "with the override": (True, "override"),
}
"""Ways to run a model: whether onnxruntime optimises it, and what runs its norms."""


class _Ways:
    """Runs of one model, with one session for each way, made when it is needed."""

    def __init__(self, model):
        self.data = model.SerializeToString()
        self.sessions = {}

    def __call__(self, how, feeds):
        if how not in self.sessions:
            self.sessions[how] = self._open(*WAYS[how])
        return outputs(self.sessions[how], feeds)

    def _open(self, optimise, norms):
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1  # starting others costs more than the run
        if not optimise:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if norms is None:
            return ort.InferenceSession(self.data, options, providers=["CPUExecutionProvider"])
        return session(self.data, options, override_builtin=norms == "override")

    def runs(self, how, feeds):
        try:
            self(how, feeds)
        except Exception:
            return False
        return True


_MISSING = "is not a graph input, initializer, or output of a previous node"
"""What onnxruntime 1.32 says of a norm of float16 that its optimizer removed by half: one whose scale has no dimensions
and is no constant, beside a single row."""


def _has_a_number_as_input(model):
    types = [v.type.tensor_type for v in model.graph.input]
    return any(t.HasField("shape") and not t.shape.dim and t.elem_type in FLOATS for t in types)


def _declares_others(model, outputs):
    for value, output in zip(model.graph.output, outputs, strict=True):
        if not value.type.tensor_type.HasField("shape"):
            continue
        declared = value.type.tensor_type.shape.dim
        if len(declared) != np.ndim(output):
            return True
        pairs = zip(declared, np.shape(output), strict=True)
        if any(d.HasField("dim_value") and d.dim_value != n for d, n in pairs):
            return True
    return False


def wrong_numbers(original, fused, form, say, count):
    """Pairs of kind and text for every way of running ``fused`` that gives other numbers than ``original``."""
    say("run the original")
    if next(iter(external_tensors(original)), None) is not None or _jumps(original):
        count("numbers not compared")
        return
    first, then = _Ways(original), _Ways(fused)
    try:
        plain = make_inputs(original)
        if sum(v.size for v in plain.values()) > MOST_ELEMENTS:
            return
        sets = [plain, adversarial_inputs(original, plain)]
        before = [first("by its bodies", feeds) for feeds in sets]
        moved = [_move_and_run(original, feeds, seed) for seed in (1, 2) for feeds in sets]
    except (RmsNormDeployError, Exception):  # it does not run, or nobody can say on what: nothing to compare with
        count("originals that do not run")
        return
    if any(np.size(v) > MOST_ELEMENTS for v in before[0]):
        return
    if _declares_others(original, before[0]):
        count("outputs of other shapes than declared")  # runtimes that plan memory by what is declared may fail
        return
    count("originals that run")
    kind = _narrowest(original)
    with np.errstate(all="ignore"):
        exact = _exact(original, sets)
    say(f"run {form}")
    optimises = first.runs("by its bodies, optimised", plain)
    for how, (optimise, norms) in WAYS.items():
        if optimise and not optimises:
            continue  # onnxruntime's own optimizer has faults
        for i, feeds in enumerate(sets):
            try:
                got = then(how, feeds)
            except Exception as error:
                if "NOT_IMPLEMENTED" in str(error) and form != "plugin":
                    count("no kernel")
                    break
                if _MISSING in str(error) and _has_a_number_as_input(original):
                    count("onnxruntime's optimizer fails")
                    break
                whose = " (nor does the original)" if norms and not first.runs(how, plain) else ""
                yield f"does not run {how}{whose}", f"{type(error).__name__}: {str(error)[:400]}"
                break
            count(f"ran {how}")
            for place, (a, g) in enumerate(zip(before[i], got, strict=True)):
                if np.shape(a) != np.shape(g) or np.asarray(a).dtype != np.asarray(g).dtype:
                    yield f"another shape or type {how}", f"{np.shape(a)} {np.shape(g)}"
                    continue
                if not is_float(np.asarray(a)):
                    continue
                t = exact[i][place] if exact[i] is not None else None
                m = [moved[j][place] for j in (i, i + len(sets)) if moved[j] is not None]
                if not m:
                    continue
                own = min((float_type(np.asarray(a).dtype), kind), key=lambda k: k.mantissa_bits)
                if (off := _off(a, t, m, g, own, UNITS[own.number])) > 1:
                    yield f"other numbers {how}", f"{off:.3g} times what is allowed, inputs {i}, output {place}"
    wide = _exact(fused, sets)
    for i in range(len(sets)):
        if exact[i] is None or wide[i] is None:
            continue
        count("compared in float64")
        if all(np.array_equal(_wide(t), _wide(g), equal_nan=True) for t, g in zip(exact[i], wide[i], strict=True)):
            continue  # what a change of the inputs does need not be known
        near = _exact_moved(original, sets[i], min(23, kind.mantissa_bits))
        for place, (t, g) in enumerate(zip(exact[i], wide[i], strict=True)):
            if near is not None and is_float(t) and np.shape(t) == np.shape(g):
                off = _off(t, None, [n[place] for n in near], g, float_type(np.dtype(np.float64)), 2.0**32)
                if off > 1:
                    yield "other numbers in float64", f"{off:.3g} times what is allowed, inputs {i}, output {place}"


def _exact(model, sets):
    truth = Truth(Runnable.in_memory(model))
    return [truth(feeds) for feeds in sets]


def _exact_moved(model, feeds, bits):
    """Float64 runs with everything off by what constants and attributes lose when they are written."""
    found = []
    for seed in (1, 2):
        copy, fed = _moved(model, {k: _wide(v) if is_float(v) else v for k, v in feeds.items()}, bits, seed)
        result = _exact(copy, [fed])[0]
        if result is None:
            return None
        found.append(result)
    return found


def _move_and_run(model, feeds, seed):
    copy, fed = _moved(model, feeds, _narrowest(model).mantissa_bits, seed)
    try:
        return _Ways(copy)("by its bodies", fed)
    except Exception:  # an exponent that is no longer 2, a size that is no longer whole
        return None
