"""One model through the whole path, and what has to hold at each step."""

import contextlib
import io
import os
import random
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import onnx
import onnx_ir as ir

import rmsnorm_deploy
from rmsnorm_deploy.errors import RmsNormDeployError
from rmsnorm_deploy.model.graphs import graphs_of, nodes_of
from rmsnorm_deploy.model.validity import complaint
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.op.body import MIN_IR_VERSION
from rmsnorm_deploy.op.naming import is_ours
from tests.fuzz.mutations.pick import all_tensors, declared
from tests.fuzz.numbers import wrong_numbers
from tests.fuzz.seeds import FORMS

PACKAGE = str(Path(rmsnorm_deploy.__file__).parent)
WEIGHTS = "weights.bin"
UNEXPECTED = 70
"""Exit status of the command line for an error of ours."""


class Finding(Exception):
    """Something that must not be.

    Attributes:
        step: where on the path.
        kind: what; findings of one step and kind are taken for one fault.
        text: more about it.
    """

    def __init__(self, step, kind, text=""):
        super().__init__(f"{step}: {kind}: {text}")
        self.step, self.kind, self.text = step, kind, text


def place_of(error):
    """The innermost line of this package that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f.filename.startswith(PACKAGE)] or frames
    name = os.path.relpath(ours[-1].filename, PACKAGE) if ours[-1].filename.startswith(PACKAGE) else ours[-1].filename
    return f"{name}:{ours[-1].name}"


def fault_of(look):
    """The kind of fault that ``look()`` finds itself or ends in, and more about it; empty where there is none."""
    try:
        return look() or ("", "")
    except RmsNormDeployError:  # an answer, too
        return "", ""
    except Exception as error:
        return f"{type(error).__name__} in {place_of(error)}", "".join(traceback.format_exception(error))[-1500:]


def _is_enormous(model):
    """Whether onnx's checker, which judges what comes out, would take all memory itself."""
    sizes = [d.dim_value for v in declared(model) for d in v.type.tensor_type.shape.dim]
    sizes += [d for t in all_tensors(model) for d in t.dims]
    return any(size > 10**5 for size in sizes)


def _declares_false_shapes(model, form):
    """Whether the model is valid after fusing once it no longer declares shapes: some of those were false, unseen.

    Inference does not follow what Shape, Expand and functions compute as far as it follows the fused model.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for graph in graphs_of(copy):
        del graph.value_info[:]
        for value in (*graph.input, *graph.output):
            for size in value.type.tensor_type.shape.dim:
                size.Clear()
    try:
        return not complaint(rmsnorm_deploy.fuse(copy, form=form)[0])
    except RmsNormDeployError:
        return False


def _complaint_about_functions(data):
    """What is wrong with functions that the checker does not look at, for the IR version is older than they are."""
    with contextlib.suppress(Exception):
        proto = onnx.ModelProto.FromString(data)
        if proto.functions and proto.ir_version < MIN_IR_VERSION:
            proto.ir_version = MIN_IR_VERSION
            return complaint(proto, full=False)
    return ""


def _but_types(model):
    """The bytes of a model without what it says of values: of a file in memory, onnx_ir knows more of them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for graph in graphs_of(copy):
        del graph.value_info[:]
    return copy.SerializeToString(deterministic=True)


class _Path:
    """The path of one model; ``say`` is told each step before it is taken, so that a death has a place."""

    def __init__(self, data, seed, say=lambda step: None, thorough=True):
        self.data, self.say, self.thorough = data, say, thorough
        self.rng = random.Random(f"path {seed}")
        self.run_form = self.rng.choice(FORMS)
        self.again_form, self.proto_form = self.rng.choice(FORMS), self.rng.choice(FORMS)
        self.complaint, self.enormous = "", True
        self.found = []
        self.counts = {}

    def step(self, name, call, *arguments, **options):
        """What a call of the package gives; None where it refuses."""
        self.say(name)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                result = call(*arguments, **options)
            except RmsNormDeployError as error:
                self.count(f"{name} refused")
                if "Please report this" in str(error) and not self.complaint:
                    self.find(name, "an invalid result", str(error))
                return None
            except MemoryError:
                raise
            except Exception as error:
                self.find(
                    name,
                    f"{type(error).__name__} in {place_of(error)}",
                    "".join(traceback.format_exception(error))[-1500:],
                )
                return None
        self.count(name)
        return result

    def find(self, step, kind, text=""):
        self.found.append(Finding(step, kind, text))

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def run(self):
        """Take all steps in a folder of their own; what was found."""
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder)
            file = here / "m.onnx"
            file.write_bytes(self.data)
            (here / WEIGHTS).write_bytes(bytes(range(256)) * 16)
            self._run(file)
        return self.found

    def _run(self, file):
        self.say("check")
        self.complaint = complaint(file) or _complaint_about_functions(self.data)
        explained = self.step("explain", rmsnorm_deploy.explain, file)
        proto = None
        with contextlib.suppress(Exception):
            proto = onnx.ModelProto.FromString(self.data)
            self.enormous = _is_enormous(proto)
        # onnx's version converter takes longer than all else: where it would run, only now and then
        old = proto is not None and any(o.domain in ("", "ai.onnx") and o.version < 23 for o in proto.opset_import)
        for form in FORMS:
            if form == "onnx" and old and self.run_form != form and self.rng.random() < 0.9:
                continue
            done = self.step(f"fuse {form}", rmsnorm_deploy.fuse, file, form=form)
            if done is None:
                continue
            fused, report = done
            if form == "plugin" and explained is not None and len(explained.fused) != len(report.fused):
                self.find("explain", "says another number than fuse", f"{len(explained.fused)}, {len(report.fused)}")
            self.step(f"report {form}", lambda report=report: (report.summary(), report.to_dict()))
            self._same_again(file, proto, form, fused)
            if report.fused or report.repaired:
                self.count("models with norms")
                self._fused(file, proto, form, fused)
        if proto is not None and DOMAIN.encode() in self.data:
            self._unfused(file, proto)
        if self.rng.random() < 0.004:
            self._command_line(file)
        if self.rng.random() < 0.05 and proto is not None:
            self.step("from_proto", self._as_ir, proto)

    def _same_again(self, file, proto, form, fused):
        """Equal input, equal bytes, however it is handed over; and the caller's model stays."""
        first = fused.SerializeToString(deterministic=True)
        if form == self.again_form and self.rng.random() < 0.5:
            again = self.step(f"fuse {form}", rmsnorm_deploy.fuse, file, form=form)
            if again is None or again[0].SerializeToString(deterministic=True) != first:
                self.find(f"fuse {form}", "other bytes the second time")
        if proto is not None and form == self.proto_form and self.rng.random() < 0.5:
            before = proto.SerializeToString(deterministic=True)
            given = self.step(f"fuse {form} of a proto", rmsnorm_deploy.fuse, proto, form=form)
            if proto.SerializeToString(deterministic=True) != before:
                self.find(f"fuse {form} of a proto", "changed the caller's model")
            outside = WEIGHTS.encode() in self.data
            if not outside and not self.complaint and (given is None or _but_types(given[0]) != _but_types(fused)):
                self.find(f"fuse {form} of a proto", "other bytes than from the file")

    def _as_ir(self, proto):
        try:
            model = ir.from_proto(proto)
        except Exception:  # not a model of onnx_ir's
            return
        rmsnorm_deploy.fuse(model)

    def _unfused(self, file, proto):
        """A fused file, or what has become of it, without our nodes."""
        done = self.step("unfuse the file", rmsnorm_deploy.unfuse, file)
        if done is None or not self.thorough or not (done[1].fused or done[1].repaired):
            return
        if not self.enormous and "Inference" not in complaint(proto):
            for kind, text in wrong_numbers(proto, done[0], "the file unfused", self.say, self.count):
                self.find("run the file unfused", kind, text)

    def _fused(self, file, proto, form, fused):
        for part in ("input", "output"):
            names = [[v.name for v in getattr(m.graph, part)] for m in (proto, fused)]
            if names[0] != names[1]:
                self.find(f"fuse {form}", f"another {part}", str(names))
        output = file.with_name(f"{form}.onnx")
        if self.step(f"save {form}", rmsnorm_deploy.save, fused, output, source=file) is None:
            if not self.complaint:
                self.find(f"save {form}", "refused a model that was valid")
            return
        judged = form != "ort" and not self.enormous and not self.complaint
        # a type that is none, or differs, is noticed where types are known, which they may be only now
        judged = judged and not any(
            not 0 < a.i < 100 for n in nodes_of(proto) if n.op_type == "Cast" for a in n.attribute
        )
        now = judged and not complaint(proto) and (complaint(output) or complaint(fused))
        if now and "inconsistent type" in now and any(n.domain == "com.microsoft" for n in nodes_of(proto)):
            now = ""
        # a node of ours without a body is of any type, and may lack anything, until it has one
        unseen = now and DOMAIN.encode() in self.data
        if unseen and "elem type differs" not in now:
            missed = rmsnorm_deploy.unfuse(fused, dry_run=True)[1].missed
            unseen = any(is_ours(DOMAIN, m.site.op_type) for m in missed)
        shapes = now and ("shape differ" in now or "Incompatible dimensions" in now)
        if now and not unseen and not (shapes and _declares_false_shapes(proto, form)):
            self.find(f"save {form}", "no longer valid", now)
        if form != self.run_form:
            return
        loaded = self.step(f"load {form} again", rmsnorm_deploy.fuse, output, form=form)
        if loaded is None:
            if not self.complaint:
                self.find(f"load {form} again", "refuses what was saved")
        # of an invalid model nothing is promised
        elif not loaded[1].fused and form != "onnx" and not self.complaint:
            again = loaded[0].SerializeToString(deterministic=True)
            if again != fused.SerializeToString(deterministic=True):
                self.find(f"load {form} again", "fusing a second time changes the model")
        self.step(f"explain {form}", rmsnorm_deploy.explain, output)
        if self.rng.random() < 0.05 and not self.enormous:  # it runs the model, on inputs of its sizes
            self.step(f"verify {form}", rmsnorm_deploy.verify, file, output)
        unfused = self.step("unfuse", rmsnorm_deploy.unfuse, output) if form == "plugin" else None
        parts = () if unfused is None else (unfused[0].graph, *unfused[0].functions)  # not what is for training
        if any(is_ours(n.domain, n.op_type) for p in parts for n in nodes_of(p)) and not unfused[1].missed:
            self.find("unfuse", "left a node of ours without a reason")
        if self.thorough:
            if self.enormous or "Inference" in complaint(proto):  # its types or shapes contradict themselves
                return
            results = [(form, fused)] + ([("unfused", unfused[0])] if unfused is not None else [])
            for name, result in results:
                for kind, text in wrong_numbers(proto, result, name, self.say, self.count):
                    self.find(f"run {name}", kind, text)

    def _command_line(self, file):
        """As a program: every error has an exit code, and only errors of ours have 70."""
        self.say("command line")
        from rmsnorm_deploy.cli.app import main

        for arguments in (
            ["explain", str(file), *(["--all"] if self.rng.random() < 0.5 else [])],
            ["explain", str(file), "--json"],
            ["fuse", str(file), "-o", str(file.with_name("cli.onnx")), "--json", "--form", self.rng.choice(FORMS)],
        ):
            out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    status = main(arguments)
                except BaseException as error:
                    self.find(f"command line {arguments[0]}", type(error).__name__, str(error))
                    continue
            err.flush()
            if status not in (0, 1, 2, 3, 4):
                said = err.buffer.getvalue().decode(errors="replace")[-600:]
                self.find(f"command line {arguments[0]}", f"exit status {status}: {said[:60]}", said)


def examine(data, seed, say=lambda step: None, thorough=True):
    """Take a model through the path: the findings, and how often each step was taken."""
    path = _Path(data, seed, say, thorough)
    return path.run(), path.counts


if __name__ == "__main__":  # python -m tests.fuzz.path FILE: the findings of one file
    for finding in examine(Path(sys.argv[1]).read_bytes(), sys.argv[2] if len(sys.argv) > 2 else "0")[0]:
        sys.stdout.write(f"{finding}\n")
