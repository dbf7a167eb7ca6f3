"""Tuning near and far: what is measured, what is lost when something breaks, and that the result is used."""

import dataclasses
import functools
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import types
import weakref

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")
pytest.importorskip("psutil", reason="psutil is not installed: pip install '.[tvm]'")
pytest.importorskip("tornado", reason="tornado is not installed: pip install '.[tvm]'")

import psutil
import tvm_ffi

from rmsnorm_deploy import tvm
from rmsnorm_deploy.cli.app import main
from rmsnorm_deploy.errors import MissingEnvironment, ModelError, UsageError
from rmsnorm_deploy.op import NormParameters, Op
from rmsnorm_deploy.op.reference import rms_norm
from rmsnorm_deploy.tvm.passes import pipeline
from rmsnorm_deploy.tvm.schedules.cpu.writer import CpuSchedule
from rmsnorm_deploy.tvm.schedules.gpu.choose import GpuSchedules
from rmsnorm_deploy.tvm.schedules.gpu.grid import GpuSchedule
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.registry import schedules_for
from rmsnorm_deploy.tvm.targets.machines import this_machine
from rmsnorm_deploy.tvm.targets.registry import GPUS
from rmsnorm_deploy.tvm.targets.resolve import resolve, this_cpu
from rmsnorm_deploy.tvm.tuning import choosing, devices, measure, search
from rmsnorm_deploy.tvm.tuning import log as tuned
from rmsnorm_deploy.tvm.tuning.log import Entry, TuningLog, values_of
from rmsnorm_deploy.tvm.tuning.measure import Job
from tests.support.replaced import replaced
from tests.support.tvm import odd_schedules
from tests.support.tvm.fleet import LocalFleet, free_port, wait_until
from tests.support.tvm.odd_schedules import (
    CRASHES,
    CRASHES_THE_COMPILER,
    HANGS,
    IS_REFUSED,
    SLOW,
    VERY_SLOW,
    WRONG,
    OddSchedule,
)

SIZE = 24


def write_model(folder, sizes=(SIZE,)):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("RMSNormalization", [f"x{s}", f"w{s}"], [f"y{s}"], epsilon=1e-6) for s in sizes],
        "g",
        [info(f"x{s}", TensorProto.FLOAT, ("rows", s)) for s in sizes]
        + [info(f"w{s}", TensorProto.FLOAT, (s,)) for s in sizes],
        [info(f"y{s}", TensorProto.FLOAT, ("rows", s)) for s in sizes],
    )
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), path)
    return path


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path)


@pytest.fixture
def odd(monkeypatch):
    """Tuning among odd schedules; the value sets which."""
    for module in (choosing, tuned, pipeline):
        monkeypatch.setattr(module, "schedules_for", lambda target: odd_schedules.OddSchedules())

    def choose(*schedules):
        monkeypatch.setattr(odd_schedules, "chosen", list(schedules))

    return choose


def number_of_threads():
    from tvm import runtime

    return runtime.num_threads()


def tvm_version():
    from tvm import __version__

    return __version__


def norm_of(size=SIZE, epsilon=1e-6):
    epsilon = float(np.float32(epsilon))
    return Norm(NormParameters(Op.RMS_NORM, TensorProto.FLOAT, epsilon=epsilon), "float32", size)


def default_of(norm):
    return schedules_for(resolve("llvm")).default(norm)


def candidates(path):
    (entry,) = tuned.read(path).entries
    return entry.candidates


# -- near -------------------------------------------------------------------------------------------------------------


def test_a_bad_candidate_loses_only_itself_and_a_faster_one_wins(model, odd, tmp_path):
    bad = (CRASHES, HANGS, WRONG, IS_REFUSED, CRASHES_THE_COMPILER)
    odd(OddSchedule(SLOW), OddSchedule(), OddSchedule(SLOW, 1), *(OddSchedule(kind) for kind in bad))
    said = []
    found = tvm.tune(model, log=tmp_path / "log", rows=[2], limit=3, progress=said.append)
    (norm,) = found.to_dict()["norms"]
    assert {d["schedule"]["kind"]: d["why"] for d in norm["discarded"]} == {
        CRASHES: "crashed with SIGABRT",
        HANGS: "took longer than 3 s",
        WRONG: next(d["why"] for d in norm["discarded"] if "ULP off at 2 rows" in d["why"]),
        IS_REFUSED: "does not compile: ValueError: there is no such kernel",
        CRASHES_THE_COMPILER: "crashed with SIGABRT",
    }
    assert norm["schedule"] == values_of(OddSchedule())
    assert (norm["state"], norm["measured"]) == ("complete", 3)
    assert norm["speedup"] > 100
    assert norm["microseconds"]["2"] < norm["default_microseconds"]["2"]
    assert [s.done for s in said] == [*range(1, 9), 8]
    assert {s.total for s in said} == {8}
    assert next(m for m in candidates(tmp_path / "log") if m.schedule == norm["schedule"]).confirmed


def test_a_default_that_does_not_run_is_an_error(model, odd, tmp_path):
    odd(OddSchedule(WRONG), OddSchedule())
    with pytest.raises(MissingEnvironment, match=r"default schedule of rms_norm_rows_24_float32 .* is wrong"):
        tvm.tune(model, log=tmp_path / "log", rows=[2])


def test_trials_and_time_are_limits_and_more_of_them_continue(model, odd, tmp_path):
    odd(*(OddSchedule(0, i) for i in range(6)))
    log = tmp_path / "log"
    assert tvm.tune(model, log=log, rows=[2], trials=3).to_dict()["norms"][0]["measured"] == 3
    first = candidates(log)
    found = tvm.tune(model, log=log, rows=[2], seconds=1e-3)  # no time for another one, but all is chosen
    assert [e.state for e in found.entries] == ["partial"]
    assert found.entries[0].schedule is not None
    found = tvm.tune(model, log=log, rows=[2])
    assert [e.state for e in found.entries] == ["complete"]
    assert sorted(m.schedule["number"] for m in candidates(log)) == list(range(6))
    assert [m.speedups[:5] for m in candidates(log)[:3]] == [m.speedups[:5] for m in first]
    assert tvm.tune(model, log=log, rows=[2]).measured == 0


def test_every_norm_and_layout_is_measured(tmp_path):
    """With the real schedules."""
    info, node = helper.make_tensor_value_info, helper.make_node
    nodes = [
        node("RMSNormalization", ["x", "w"], ["a"], epsilon=1e-6),
        node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        node("RMSNormalization", ["h", "v"], ["b"], epsilon=1e-6),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            info("x", TensorProto.FLOAT, ("rows", SIZE)),
            info("w", TensorProto.FLOAT, (SIZE,)),
            info("v", TensorProto.FLOAT16, (SIZE,)),
        ],
        [info("a", TensorProto.FLOAT, ("rows", SIZE)), info("b", TensorProto.FLOAT16, ("rows", SIZE))],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    found = tvm.tune(proto, log=tmp_path / "log", rows=[1, 3], trials=2)
    assert {e.norm.dtype for e in found.entries} == {"float32", "float16"}
    for entry in found.entries:
        assert entry.state == "complete"
        assert entry.candidates[0].schedule == entry.default
        assert set(entry.candidates[0].microseconds) == {"1", "3"}
        assert not any(m.discarded for m in entry.candidates)


@pytest.mark.parametrize(
    ("columns", "outer_rank", "inner_rank", "full"),
    [(False, 1, 1, False), (False, 3, 1, True), (True, 1, 2, False), (True, 2, 1, True)],
)
@pytest.mark.parametrize("op", [op for op in Op if not (op.quantises or op is Op.GATED_RMS_NORM)])
def test_a_norm_of_any_layout_is_checked(op, columns, outer_rank, inner_rank, full):
    """The check has the kernel's argument order and shapes: else a right kernel would be wrong."""
    p = NormParameters(op, TensorProto.FLOAT16, epsilon=1e-3, scale_type=TensorProto.FLOAT)
    biased = op is Op.GENERAL_RMS_NORM
    p = dataclasses.replace(p, partial_size=7, epsilon_outside=0.25) if biased else p
    norm = Norm(p, "float32", SIZE, columns, full, full and biased, outer_rank, inner_rank)
    target = resolve("llvm")
    schedules = schedules_for(target)
    default = schedules.default(norm)
    outcome = measure.measure(Job(norm, schedules, str(target), default, default, (1, 3), 1, 9.0), False)
    assert outcome.unfit == ""
    assert set(outcome.microseconds) == {"1", "3"}


class Luck:
    """A machine on which candidate ``number`` is as fast as said: first in the search, then when it is confirmed."""

    count = 1

    def __init__(self, speedups):
        self.speedups = speedups

    def put(self, number, job):
        self.given = number, job

    def get(self):
        number, job = self.given
        s = self.speedups[job.candidate.number][job.turns == choosing.CONFIRMING_TURNS]
        times = {"1": 1.0}
        return number, measure.Outcome("", "", times, times, s if isinstance(s, list) else [s] * job.turns)


@pytest.mark.parametrize(
    ("speedups", "chosen", "speedup"),
    [
        ({1: (1.5, 0.9), 2: (1.2, 1.2)}, 2, 1.2),  # the best of the search was lucky
        ({1: (1.5, 1.4), 2: (1.2, 1.2)}, 1, 1.4),
        ({1: (1.009, 1.009), 2: (0.5, 0.5)}, 0, 1.0),  # less than one per cent
        ({i: (2 + i / 10, 0.9) for i in range(1, 7)}, 0, 1.0),  # no luck three times is enough
        ({0: ([1, 1.1, 0.9, 1.1, 0.9], 1.0), 1: (1.2, 1.2), 2: (1.4, 1.4)}, 2, 1.4),  # noise: 30 %
        ({0: ([1, 1.1, 0.9, 1.1, 0.9], 1.0), 1: (1.2, 1.2)}, 0, 1.0),
    ],
)
def test_a_candidate_has_to_win_twice_by_more_than_the_noise(odd, tmp_path, speedups, chosen, speedup):
    speedups = {0: (1.0, 1.0), **speedups}
    odd(*(OddSchedule(number=i) for i in sorted(speedups)))
    log = TuningLog("llvm", "", "", "", "local", 1, [1])
    target = resolve("llvm")
    search = choosing.Search(log, tmp_path / "log", target, [norm_of()], None, 1.0)
    search.run(Luck(speedups), None, None)
    (entry,) = log.entries
    assert (entry.state, entry.schedule["number"], entry.speedup) == ("complete", chosen, speedup)
    assert sum(m.confirmed for m in entry.candidates) <= choosing.MOST_CONFIRMED
    assert len(entry.candidates) == len(speedups)


@pytest.mark.parametrize(("slower", "chosen"), [(1.05, 1), (1.2, 0)])
def test_no_row_count_pays_for_the_others(odd, tmp_path, slower, chosen, monkeypatch):
    odd(OddSchedule(), OddSchedule(number=1))
    log = TuningLog("llvm", "", "", "", "local", 1, [1, 512])
    search = choosing.Search(log, tmp_path / "log", resolve("llvm"), [norm_of()], None, 1.0)
    runner = Luck({0: (1.0, 1.0), 1: (1.3, 1.3)})

    def get(own=runner.get):
        number, outcome = own()
        return number, dataclasses.replace(
            outcome, microseconds={"1": 0.5, "512": slower}, default_microseconds={"1": 1.0, "512": 1.0}
        )

    monkeypatch.setattr(runner, "get", get)
    search.run(runner, None, None)
    assert log.entries[0].schedule["number"] == chosen


INTERRUPTED = """
import sys
from tests.support.tvm import odd_schedules
from rmsnorm_deploy.tvm.passes import pipeline
from rmsnorm_deploy.tvm.tuning import choosing, log
SLOW, HANGS = odd_schedules.SLOW, odd_schedules.HANGS
kinds = [SLOW, SLOW, HANGS] if sys.argv[3] == "hangs" else [SLOW, SLOW, SLOW]
odd_schedules.chosen = [odd_schedules.OddSchedule(kind, i) for i, kind in enumerate(kinds)]
for module in (choosing, log, pipeline):
    module.schedules_for = lambda target: odd_schedules.OddSchedules()
from rmsnorm_deploy.cli.app import main
sys.exit(main(["tune", sys.argv[1], "--log", sys.argv[2], "--rows", "2"]))
"""


def test_an_interrupted_search_says_so_and_continues(model, tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", INTERRUPTED, model, log]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(
        [*command, "hangs"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(log.exists)
        wait_until(lambda: time.time() - log.stat().st_mtime > 1.5)  # one candidate hangs, for a minute
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    note, last = err.splitlines()
    assert note.endswith("log has what was measured; the same command continues")
    assert last == "error: interrupted"
    assert not psutil.wait_procs(children, timeout=60)[1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "m.onnx"]
    before = tuned.read(log).entries[0]
    assert (before.state, before.schedule) == ("searching", None)
    assert before.candidates
    done = subprocess.run([*command, "works"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(candidates(log)) == 3
    kept = candidates(log)[: len(before.candidates)]
    assert [m.speedups[:5] for m in kept] == [m.speedups for m in before.candidates]
    assert "\x1b" not in done.stderr  # no bar where nobody looks
    (entry,) = tuned.read(log).entries  # the kernels are equal: the noise of a busy machine must not pass for a gain
    assert (entry.state, entry.schedule, entry.speedup) == ("complete", entry.default, 1.0)
    assert entry.noise >= 0.01


# -- the log ----------------------------------------------------------------------------------------------------------


def a_log(path, schedule, norm=None, cpu_name=None, machine=None, **changes):
    """A log that says ``schedule``."""
    norm = norm or norm_of()
    default = values_of(default_of(norm))
    log = TuningLog("llvm", machine or this_machine(), cpu_name or this_cpu(), "0.27", "local", 1, [1])
    log.entries.append(Entry(norm, default, "complete", schedule))
    path.write_text(json.dumps(log.to_dict() | changes))
    return path


def other_schedule():
    return dataclasses.replace(default_of(norm_of()), accumulators=3)


def test_what_is_written_is_read(tmp_path):
    p = NormParameters(
        Op.GENERAL_RMS_NORM, TensorProto.FLOAT16, epsilon=1e-6, partial_size=5, scale_type=TensorProto.FLOAT16
    )
    norm = Norm(p, "float16", None, True, True, True)
    log = tuned.read(a_log(tmp_path / "log", {"a": 1}, norm))
    log.entries[0].candidates.append(tuned.Measured({"a": 1}, "", {"1": 1.5}, {"1": 2.5}, [1.6], True))
    log.write(tmp_path / "again")
    assert tuned.read(tmp_path / "again") == log
    assert sorted(q.name for q in tmp_path.iterdir()) == ["again", "log"]


def test_compile_uses_the_tuned_schedule(model, tmp_path):
    def lowered(name, **options):
        made = tvm.compile(model, output=tmp_path / name, dump_ir=tmp_path / f"{name}_ir", **options)
        return made, (tmp_path / f"{name}_ir" / "01_lower_norms.py").read_text()

    made, default = lowered("plain")
    assert made.tuned is None
    made, text = lowered("tuned", tuned=a_log(tmp_path / "log", values_of(other_schedule())))
    assert (made.tuned, made.kernels) == (1, 1)
    kernel = schedules_for(resolve("llvm")).kernel(norm_of(), other_schedule())
    body = kernel.script().partition("def ")[2].splitlines()[2:]
    wanted = {line.strip() for line in body}
    assert wanted <= {line.strip() for line in text.splitlines()}
    assert not wanted <= {line.strip() for line in default.splitlines()}
    rng = np.random.default_rng(3)
    w = rng.standard_normal(SIZE).astype(np.float32)
    for rows in (1, 5, 3000):
        x = rng.standard_normal((rows, SIZE)).astype(np.float32)
        truth, _ = rms_norm(x, w, epsilon=1e-6, exact=True)
        got = tvm.load(tmp_path / "tuned")({f"x{SIZE}": x, f"w{SIZE}": w})[f"y{SIZE}"]
        np.testing.assert_allclose(got, truth, rtol=0, atol=3e-6)


def test_norms_that_the_log_does_not_know_have_the_default(tmp_path, capfd):
    model = write_model(tmp_path, (SIZE, 40))
    log = a_log(tmp_path / "log", values_of(other_schedule()))
    assert main(["compile", str(model), "-o", str(tmp_path / "c"), "--tuned", str(log)]) == 0
    assert "1 of 2 kernels have a tuned schedule" in capfd.readouterr().err
    log = a_log(tmp_path / "log", values_of(other_schedule()), norm_of(7))
    assert tvm.compile(model, output=tmp_path / "d", tuned=log).tuned == 0
    log = a_log(tmp_path / "log", None)  # still searching
    assert tvm.compile(model, output=tmp_path / "e", tuned=log).tuned == 0


def test_logs_for_something_else_are_refused(model, tmp_path, capfd):
    log = a_log(tmp_path / "log", values_of(other_schedule()), cpu_name="generic")
    assert main(["compile", str(model), "-o", str(tmp_path / "c"), "--tuned", str(log)]) == 2
    said = capfd.readouterr().err
    assert f"is for llvm {this_machine()} generic, and this is llvm {this_machine()} {this_cpu()}" in said
    assert "'--target llvm --mcpu generic'" in said
    assert not (tmp_path / "c").exists()
    assert tvm.compile(model, mcpu="generic", output=tmp_path / "c", tuned=log).tuned == 1
    assert main(["tune", str(model), "--log", str(log)]) == 2
    assert f"is for llvm {this_machine()} generic" in capfd.readouterr().err
    other = a_log(tmp_path / "other", values_of(other_schedule()), cpu_name="generic", machine="sparc")
    with pytest.raises(UsageError, match="is for llvm sparc generic") as raised:
        tvm.compile(model, mcpu="generic", output=tmp_path / "d", tuned=other)
    assert "'--target llvm --mtriple sparc-linux-gnu --mcpu generic'" in raised.value.hint
    for change in ({"tvm": "0.1"}, {"rows": [3]}, {"device": "other"}, {"threads": 99}):
        a_log(log, values_of(other_schedule()), **change)
        with pytest.raises(UsageError, match="was measured with"):
            tvm.tune(model, log=log, rows=[1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a log of tuning"),
        ("[1]", "not a log of tuning"),
        ('{"schema_version": 9}', "has format 9"),
        ('{"schema_version": 2, "norms": [{}]}', "not a log of tuning"),
        (None, "cannot be read"),
        ("/dev/zero", "it is not a regular file"),
    ],
)
def test_files_that_are_no_logs_are_refused(model, tmp_path, text, said):
    log = tmp_path / "log"
    if text == "/dev/zero":
        log.symlink_to(text)
    elif text is not None:
        log.write_text(text)
        with pytest.raises(ModelError, match=said):
            tvm.tune(model, log=log)
    with pytest.raises(ModelError, match=said):
        tvm.compile(model, output=tmp_path / "c", tuned=log)


@pytest.mark.parametrize("schedule", [{"spirals": 3}, {"accumulators": "3"}])
def test_schedules_of_another_release_are_refused(model, tmp_path, schedule):
    with pytest.raises(ModelError, match="of another release"):
        tvm.compile(model, output=tmp_path / "c", tuned=a_log(tmp_path / "log", schedule))


@pytest.mark.parametrize(
    "schedule",
    [
        *({"lanes": 7}, {"lanes": 0}, {"batch": -3}, {"accumulators": 0}, {"serial_below": -1}, {"stream_from": -1}),
        *({name: 10**9} for name in ("lanes", "accumulators", "batch")),
        *({name: 10**30} for name in ("lanes", "accumulators", "batch", "serial_below", "task_values", "stream_from")),
    ],
)
def test_a_schedule_that_would_give_other_results_or_compile_for_ever_is_refused(model, tmp_path, schedule):
    log = a_log(tmp_path / "log", values_of(CpuSchedule()) | schedule)
    with pytest.raises(ModelError, match="no such schedule"):
        tvm.compile(model, output=tmp_path / "c", tuned=log)


@pytest.mark.parametrize("change", [{"threads": 10**9}, {"rows": 10**9}, {"vectors": -1}, {"lanes": 0}, {"ahead": 2}])
def test_a_gpu_has_only_so_many_threads(change):
    with pytest.raises(ValueError, match="no such schedule"):
        GpuSchedule(**{"lanes": 4, "threads": 32, "vectors": 1, "rows": 1, "warp": 1} | change)


ODD = [None, True, -1, 2**70, 1.5, float("nan"), float("inf"), "", "float32", [], {}, [None], [[]], [1], {"a": 1}]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_log_that_was_changed_is_refused_or_read(tmp_path, odd):
    path = a_log(tmp_path / "log", values_of(other_schedule()))
    log = tuned.read(path)
    log.entries[0].candidates.append(tuned.Measured(values_of(other_schedule()), "", {"1": 1.5}, {"1": 2.5}, [1.6]))
    refused = 0
    for change in replaced(log.to_dict(), odd):
        path.write_text(json.dumps(change))
        try:
            tuned.TunedSchedules(path, resolve("llvm"))
        except (ModelError, UsageError):
            refused += 1
        else:
            tuned.read(path).write(path)  # what was read can be written
    assert refused > 20


def test_another_default_is_measured_anew(odd, tmp_path):
    odd(OddSchedule(number=2), OddSchedule(number=1))
    log = tuned.read(a_log(tmp_path / "log", values_of(OddSchedule(number=1))))
    log.entries[0].candidates.append(tuned.Measured(values_of(OddSchedule(number=1)), speedups=[2.0]))
    search = choosing.Search(log, tmp_path / "log", resolve("llvm"), [norm_of()], None, 1.0)
    (entry,) = log.entries
    assert (entry.default, entry.schedule, entry.candidates) == (values_of(OddSchedule(number=2)), None, [])
    assert [task.schedule.number for task in search.todo] == [2, 1]


def test_the_command(model, odd, tmp_path, capfd):
    odd(OddSchedule(), OddSchedule(number=1), OddSchedule(IS_REFUSED))
    log = tuned.read(a_log(tmp_path / "log", values_of(OddSchedule(number=1)), tvm=tvm_version(), rows=[2]))
    (entry,) = log.entries
    entry.default, log.threads = values_of(OddSchedule()), number_of_threads()
    entry.candidates = [
        tuned.Measured(values_of(OddSchedule()), "", {"2": 9.0}, {"2": 9.0}, [1.0]),
        tuned.Measured(values_of(OddSchedule(number=1)), "", {"2": 4.0}, {"2": 9.0}, [2.25], True),
        tuned.Measured(values_of(OddSchedule(IS_REFUSED)), "does not compile"),
    ]
    log.write(tmp_path / "log")
    command = ["tune", str(model), "--log", str(tmp_path / "log"), "--rows", "2"]
    assert main(command) == 0
    said = capfd.readouterr()
    assert re.search(r"rms_norm_rows_24_float32 +number 1 +2.25x +9 -> 4 +2 +1\n", said.out)
    assert "note: rms_norm_rows_24_float32: kind 6, number 0 does not compile" in said.err
    assert "0 measurements: the log had everything" in said.err
    assert main([*command, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["measured"], report["norms"][0]["state"]) == (0, "complete")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rows", "0"], "row counts are"),
        (["--rows", "1,1"], "row counts are"),
        (["--rows", "a"], "--rows takes numbers"),
        (["--tracker", "x:1"], "one of them is missing"),
        (["--key", "x"], "one of them is missing"),
        (["--tracker", "x", "--key", "k"], "is not HOST:PORT"),
        (["--target", "toaster"], "no schedules for target"),
        (["--mtriple", "aarch64-linux-gnu" if this_machine() == "x86_64" else "x86_64-linux-gnu"], "cannot measure"),
        (["--arch", "sm_90"], "no GPU architectures"),
        (["--target", "cuda", "--arch", "sm_1"], "'sm_1' is not a GPU"),
        (["--target", "cuda", "--mcpu", "generic", "--tracker", "x:1", "--key", "k"], "cannot be measured on a fleet"),
        (["--target", "rocm", "--mcpu", "generic", "--tracker", "x:1", "--key", "k"], "the devices' GPU is not"),
    ],
)
def test_calls_that_contradict_themselves(model, tmp_path, capfd, options, said):
    assert main(["tune", str(model), "--log", str(tmp_path / "log"), *options]) == 2
    assert said in capfd.readouterr().err
    assert not (tmp_path / "log").exists()


# -- GPUs -------------------------------------------------------------------------------------------------------------


def test_without_a_gpu_there_is_one_sentence_and_nothing_is_measured(model, tmp_path, capfd, monkeypatch):
    if tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is not None:
        pytest.skip("this machine has CUDA: the sentence is for those without")
    monkeypatch.setattr(search, "Runner", None)
    assert main(["tune", str(model), "--log", str(tmp_path / "log"), "--target", "cuda"]) == 4
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "error: TVM has no runtime for target 'cuda' here"
    assert "libcuda.so.1" in said[1]
    assert len(said) == 2
    assert not (tmp_path / "log").exists()


@pytest.fixture
def gpu_here(monkeypatch):
    """A GPU, as far as tuning asks about it, that is faster with every schedule but the default."""
    device = types.SimpleNamespace(compute_version="9.0", device_name="Stand-in")
    monkeypatch.setattr(devices, "device_for", lambda target: device)
    monkeypatch.setattr(devices.cubin, "find_nvcc", lambda: "nvcc")
    monkeypatch.setattr(search, "Runner", lambda *_: FastGpu())
    return device


class FastGpu(Luck):
    def __init__(self):
        super().__init__({})

    def get(self):
        number, job = self.given
        factor = 1.0 if job.candidate == job.default else 1.5 if job.candidate.ahead != job.default.ahead else 1.2
        times = {str(r): 1.0 for r in job.rows}
        return number, measure.Outcome("", "", times, times, [factor] * job.turns)

    def stop(self):
        pass


def test_the_log_is_about_one_gpu(model, tmp_path, gpu_here, capfd):
    log = tmp_path / "log"
    assert main(["tune", str(model), "--log", str(log), "--target", "cuda", "--rows", "2"]) == 0
    assert f"compile {model} --target cuda --arch sm_90 --tuned {log}" in capfd.readouterr().err
    said = tuned.read(log)
    assert (said.target, said.machine, said.cpu, said.device, said.threads) == (
        "cuda",
        "",
        "sm_90",
        "local Stand-in",
        0,
    )
    (entry,) = said.entries
    target = resolve("cuda", arch="sm_90")
    assert entry.default == values_of(GpuSchedules(GPUS["cuda"]).default(norm_of()))
    assert sorted(map(str, (m.schedule for m in entry.candidates))) == sorted(
        str(values_of(s)) for s in GpuSchedules(GPUS["cuda"]).candidates(norm_of())
    )
    assert (entry.schedule["ahead"], entry.speedup) == (1 - entry.default["ahead"], 1.5)
    assert values_of(tuned.TunedSchedules(log, target)(norm_of())) == entry.schedule
    with pytest.raises(UsageError, match="is for cuda sm_90, and this is cuda sm_80") as raised:
        tuned.TunedSchedules(log, resolve("cuda", arch="sm_80"))
    assert "'--target cuda --arch sm_90'" in raised.value.hint
    with pytest.raises(UsageError, match="is for cuda sm_90, and this is llvm"):
        tvm.compile(model, output=tmp_path / "c", tuned=log)

    with pytest.raises(UsageError, match="the GPU here is sm_90, and not sm_80"):
        tvm.tune(model, "cuda", arch="sm_80", log=log, rows=[2])
    gpu_here.device_name = "Another"  # of the same architecture
    with pytest.raises(UsageError, match="measured with device local Stand-in, and this is local Another"):
        tvm.tune(model, "cuda", log=log, rows=[2])
    gpu_here.compute_version = "8.0"
    with pytest.raises(UsageError, match="is for cuda sm_90, and this is cuda sm_80"):
        tvm.tune(model, "cuda", log=log, rows=[2])


def test_a_log_compiles_for_one_gpu(model, tmp_path, monkeypatch):
    monkeypatch.setattr(devices.cubin, "find_nvcc", lambda: "nvcc")
    with pytest.raises(UsageError, match="about one GPU, and this is for sm_80, sm_90"):
        tvm.compile(model, "cuda", output=tmp_path / "c", tuned=tmp_path / "log")


# -- far --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet():
    with LocalFleet() as made:
        yield made


def far(fleet, key, **options):
    return {"tracker": fleet.address, "key": key, "rows": [2], **options}


def test_a_device_that_dies_loses_nothing(model, odd, tmp_path, fleet, capfd):
    odd(*(OddSchedule(VERY_SLOW, i) for i in range(4)))
    devices = fleet.add("two", 2)

    def pull_the_plug():
        session = wait_until(lambda: fleet.serving(devices[0]))
        time.sleep(0.2)  # a measurement takes longer
        assert session.is_running()
        fleet.kill(devices[0])

    plug = threading.Thread(target=pull_the_plug)
    plug.start()
    try:
        found = tvm.tune(model, log=tmp_path / "log", **far(fleet, "two"))
    finally:
        plug.join()
    assert (found.devices, found.lost) == (2, 1)
    assert devices[0].poll() is not None
    measured = candidates(tmp_path / "log")
    assert sorted(m.schedule["number"] for m in measured) == [0, 1, 2, 3]
    assert not any(m.discarded for m in measured)
    assert [e.state for e in found.entries] == ["complete"]
    said = refused(model, tmp_path, capfd, fleet.address, "gone")
    assert said[0] == f"error: the tracker at {fleet.address} has no device with the key 'gone'"
    assert "It has: two" in said[1]
    assert "rpc_server --tracker" in said[1]


class Session:
    """A device that runs nothing."""

    def device(self, name):
        raise RuntimeError(f"no {name}")

    def get_function(self, name):
        return None


def test_a_device_is_free_when_it_has_measured(monkeypatch):
    session = Session()
    held = weakref.ref(session)
    monkeypatch.setattr(devices, "_session", session)
    del session
    monkeypatch.setattr(measure, "_libraries", lambda job: [])
    default = default_of(norm_of())
    target = resolve("llvm")
    job = Job(norm_of(), schedules_for(target), str(target), default, default, (1,), 1, 9.0)
    assert measure.measure(job, True).unfit == "does not run: RuntimeError: no cpu"
    assert held() is None


@pytest.mark.parametrize(
    "schedules", [odd_schedules.OddSchedules(), *map(schedules_for, map(resolve, ("llvm", *GPUS)))]
)
def test_what_is_built_for_a_device_is_found_again_while_it_is_held(schedules, monkeypatch):
    """A job comes to the child process twice, to be built and to be measured, each time as a copy of its own."""
    made = []
    monkeypatch.setattr(measure, "_library", functools.lru_cache(lambda *key: made.append(key) or len(made)))
    default = schedules.default(norm_of())
    job = Job(norm_of(), schedules, "a target", default, default, (1,), 1, 9.0)
    for _ in range(2):
        assert measure._libraries(pickle.loads(pickle.dumps(job))) == [1, 1]
    assert len(made) == 1


def refused(model, tmp_path, capfd, address, key):
    command = ["tune", str(model), "--log", str(tmp_path / "new"), "--mcpu", this_cpu()]
    assert main([*command, "--tracker", address, "--key", key]) == 4
    assert not (tmp_path / "new").exists()
    return capfd.readouterr().err.splitlines()


def test_without_a_tracker_there_is_one_sentence(model, tmp_path, capfd):
    nowhere = f"127.0.0.1:{free_port()}"
    said = refused(model, tmp_path, capfd, nowhere, "k")
    assert said[0] == f"error: no RPC tracker answers at {nowhere}"
    assert "rpc_tracker" in said[1]


def test_the_last_device_is_waited_for_and_one_that_hangs_is_freed(model, odd, tmp_path, fleet, monkeypatch):
    odd(*(OddSchedule(SLOW, i) for i in range(2)), OddSchedule(HANGS), OddSchedule(WRONG))
    (device,) = fleet.add("one")
    comes_back = threading.Thread(target=fleet.add, args=("one",))

    def plug(progress):
        if progress.done == 1:
            fleet.kill(device)
            comes_back.start()

    log, options = tmp_path / "log", far(fleet, "one", limit=3)
    found = tvm.tune(model, log=log, patience=60, progress=plug, **options)
    comes_back.join()
    (norm,) = found.to_dict()["norms"]
    assert (norm["state"], norm["measured"]) == ("complete", 2)
    whys = {d["schedule"]["kind"]: d["why"] for d in norm["discarded"]}
    assert whys.pop(HANGS) == "took longer than 3 s"  # and the device went on
    assert "ULP off at 2 rows" in whys.pop(WRONG)
    assert not whys

    before = log.read_text()
    odd(*odd_schedules.chosen, OddSchedule(number=5))

    def pull(_):
        fleet.kill(fleet.processes[-1])
        return 1

    monkeypatch.setattr(devices, "count", pull)  # it dies when it has been counted
    with pytest.raises(MissingEnvironment) as raised:
        tvm.tune(model, log=log, patience=1, **options)
    assert "had no device with the key 'one' for" in raised.value.message
    assert "run the same command" in raised.value.hint
    assert log.read_text() == before


def test_a_candidate_that_takes_devices_down_gets_no_third_one(model, odd, tmp_path, fleet):
    odd(OddSchedule(), OddSchedule(CRASHES))
    fleet.add("crash", 2)
    found = tvm.tune(model, log=tmp_path / "log", patience=10, **far(fleet, "crash"))
    (norm,) = found.to_dict()["norms"]
    assert [d["why"] for d in norm["discarded"]] == ["2 devices were lost with it"]
    assert (norm["measured"], norm["state"], found.lost) == (1, "complete", 2)
