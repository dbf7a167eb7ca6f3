"""Programs with PyTorch: ``python -m tests.torch.programs FOLDER`` runs all of them, each writing what it found to
``FOLDER/NAME.json``. They run in an environment of their own, which has no pytest; the tests judge what they found."""

import json
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch

import rmsnorm_deploy
import rmsnorm_deploy.torch as rt
from rmsnorm_deploy.op import DOMAIN, Op, reference
from rmsnorm_deploy.op.dtypes import TYPES
from rmsnorm_deploy.torch.naming import OPERATORS, snake_case
from rmsnorm_deploy.torch.operators import parameters_of

SHAPE = (3, 4, 8)
DTYPES = ("float32", "float16", "bfloat16", "float64")
NUMBERS = {t.name: t.number for t in TYPES}
# how a module calls PyTorch's norm: what is normalised, whether it has a weight (None: of its own type), its epsilon
CALLS = {
    "plain": ((8,), True, 1e-6),
    "no_epsilon": ((8,), True, None),
    "no_weight": ((8,), False, 1e-6),
    "two_axes": ((4, 8), True, 1e-3),
    "two_axes_no_weight": ((4, 8), False, None),
    "wide_weight": ((8,), "float32", 1e-6),
}


class Functional(torch.nn.Module):
    """``F.rms_norm`` as all of CALLS have it. Inputs and outputs are in types that onnxruntime takes from NumPy."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = getattr(torch, dtype)
        self.io = torch.float64 if dtype == "float64" else torch.float32
        for i, (call, (shape, weight, _)) in enumerate(CALLS.items()):
            own = self.dtype if weight is True else getattr(torch, str(weight), None)
            values = torch.linspace(0.5 + i / 8, 1.5, int(np.prod(shape))).reshape(shape)  # no two are the same norm
            setattr(self, call, torch.nn.Parameter(values.to(own)) if weight else None)

    def forward(self, x):
        x = x.to(self.dtype)
        calls = ((shape, getattr(self, call), eps) for call, (shape, _, eps) in CALLS.items())
        return tuple(torch.nn.functional.rms_norm(x, *given).to(self.io) for given in calls)


class Operators(torch.nn.Module):
    """Every operator of the definition, once, with a residual stream; in one type."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = getattr(torch, dtype)
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8).to(self.dtype))

    def forward(self, x):
        y = x.to(self.dtype)
        for op in OPERATORS.values():
            inputs = {"X": y, "scale": self.scale, "bias": self.scale}
            given = [inputs.get(name, 2 * y) for name in op.inputs]
            done = getattr(rt, snake_case(op))(*given, **attributes_of(op))
            y = done if isinstance(done, torch.Tensor) else done[0] + done[1]
        return y.to(torch.float32)


class Dynamic(torch.nn.Module):
    """A size that is known only when the model runs is normalised."""

    def forward(self, x, weight):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight=weight, eps=1e-3) + torch.nn.functional.rms_norm(
            x, x.shape[-2:]
        )


class Branch(torch.nn.Module):
    """A norm in a branch."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.RMSNorm(8)

    def forward(self, x):
        return torch.cond(x.sum() > 0, self.norm, lambda x: x * 2, (x,))


class Written(torch.nn.Module):
    """A residual block with one norm of PyTorch's and one written out."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.RMSNorm(8, eps=1e-6)
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.linear = torch.nn.Linear(8, 8, bias=False)

    def forward(self, x):
        x = x + self.linear(self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)))
        return self.linear(self.norm(x + self.linear(x)))


def attributes_of(op):
    """Something other than the default of what the operator has beside its epsilon."""
    more = {"epsilon_outside": 1e-3, "rms_floor": 0.1, "partial_size": [5]} if op is Op.GENERAL_RMS_NORM else {}
    return {"epsilon": 1e-5, **more}


def example(dtype=torch.float32):
    return torch.from_numpy(np.random.default_rng(0).standard_normal(SHAPE)).to(dtype)


def run(model, x, *, library=True):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if library:
        rmsnorm_deploy.register(options)
    content = model if isinstance(model, bytes) else ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})


def far(got, expected, dtype):
    """The largest difference, in the spacing of the type at the largest value."""
    expected = expected.detach().double().numpy()
    mantissa = next(t.mantissa_bits for t in TYPES if t.name == dtype)
    spacing = 2.0 ** (np.floor(np.log2(np.abs(expected).max())) - mantissa)
    return float(np.abs(got.astype(np.float64) - expected).max() / spacing)


def functional(folder):
    """What the table makes of every call in every type, and how far from eager the file is."""
    del folder
    found = {}
    for dtype in DTYPES:
        module = Functional(dtype).eval()
        x = example(module.io)
        table = rt.translations()
        program = torch.onnx.export(module, (x,), dynamo=True, verbose=False, custom_translation_table=table)
        ours = [n for n in program.model.graph if n.domain == DOMAIN]
        others = sorted({n.op_type for n in program.model.graph if n.domain != DOMAIN})
        fused, report = rmsnorm_deploy.fuse(program.model)
        expected, got, alone = module(x), run(fused, x), run(fused, x, library=False)
        for i, (call, node) in enumerate(zip(CALLS, ours, strict=True)):
            found[f"{dtype} {call}"] = {
                "op": node.op_type,
                "others": others,
                "attributes": {a.name: a.value for a in node.attributes.values()},
                "scale": list(node.inputs[1].shape or []),
                "repaired": list(report.repaired),
                "with_library": far(got[i], expected[i], dtype),
                "without": far(alone[i], expected[i], dtype),
            }
    return found


def eager(folder):
    """The operators in eager against the reference, and their gradients against differences."""
    del folder
    rng = np.random.default_rng(0)
    found = {}
    for op in OPERATORS.values():
        function = getattr(rt, snake_case(op))
        for dtype in ("float32", "float16", "float64"):
            arrays = [
                rng.standard_normal(8 if name in ("scale", "bias") else SHAPE).astype(dtype) for name in op.inputs
            ]
            got = function(*map(torch.from_numpy, arrays), **attributes_of(op))
            got = [got] if isinstance(got, torch.Tensor) else list(got)
            expected = reference.evaluate(parameters_of(op, NUMBERS[dtype], attributes_of(op)), *arrays, exact=True)
            pairs = zip(got, expected, strict=True)
            found[f"{op.value} {dtype}"] = max(
                far(g.double().numpy(), torch.from_numpy(np.asarray(e, np.float64)), dtype) for g, e in pairs
            )
        inputs = [
            torch.from_numpy(rng.standard_normal(8 if n in ("scale", "bias") else (2, 8))).requires_grad_()
            for n in op.inputs
        ]
        arguments = tuple(torch.ones(8 if n in ("scale", "bias") else (2, 8)) for n in op.inputs)
        checked = torch.library.opcheck(function.default, arguments, attributes_of(op))
        found[f"{op.value} checks"] = sorted(set(checked.values()))
        good = torch.autograd.gradcheck(lambda *x, f=function, op=op: f(*x, **attributes_of(op)), inputs)
        found[f"{op.value} gradients"] = bool(good)
    return found


def operators(folder):
    """A module of our operators: eager, torch.export and the file agree."""
    del folder
    found = {}
    for dtype in ("float32", "float16"):
        module = Operators(dtype).eval()
        x = example()
        program = torch.export.export(module, (x,))
        names = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
        model, report = rt.export(module, (x,))
        found[dtype] = {
            "in_graph": sorted(n for n in names if n.startswith(DOMAIN)),
            "graph_differs": float((program.module()(x) - module(x)).abs().max()),
            "file": far(run(model, x)[0], module(x), dtype),
            "fused": len(report.fused),
        }
    return found


def whole(folder):
    """``export``: the file, the report, dynamic sizes, forms, and what is refused."""
    module, x = Written().eval(), example()
    path = Path(folder) / "written.onnx"
    tokens = torch.export.Dim("tokens", min=1, max=64)
    _, report = rt.export(module, (x,), path, dynamic_shapes=({1: tokens},), input_names=["hidden"])
    longer = torch.from_numpy(np.random.default_rng(1).standard_normal((3, 9, 8))).float()
    standard, _ = rt.export(module, (x,), form="onnx")
    size = torch.export.Dim("size", min=2, max=64)
    weight = torch.linspace(0.5, 1.5, 8)
    kinds = {
        "dynamic": rt.export(Dynamic(), (x, weight), dynamic_shapes=({2: size}, {0: size}))[1],
        "branch": rt.export(Branch().eval(), (x,))[1],
        "program": rt.export(torch.export.export(module, (x,)))[1],
    }
    refused = {}
    for name, arguments in {
        "exists": {"path": path},
        "form": {"form": "none"},
        "dynamo": {"dynamo": False},
        "f": {"f": "other.onnx"},
    }.items():
        try:
            rt.export(module, (x,), **arguments)
        except rmsnorm_deploy.UsageError as error:
            refused[name] = error.message
    try:
        integers = torch.ones(2, 8, dtype=torch.int64)
        rt.rms_norm(integers, integers)
    except ValueError as error:
        refused["integers"] = str(error)
    return {
        "ops": sorted(f.op for f in report.fused),
        "summary": report.summary(),
        "difference": far(run(path.read_bytes(), longer)[0], module(longer), "float32"),
        "onnx": [n.op_type for n in standard.graph if n.op_type == "RMSNormalization"],
        "kinds": {name: report.summary() for name, report in kinds.items()},
        "refused": refused,
    }


PROGRAMS = (functional, eager, operators, whole)


def main():
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    for program in PROGRAMS:
        try:
            found = program(folder)
        except Exception:
            found = {"error": traceback.format_exc()}
        (folder / f"{program.__name__}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
