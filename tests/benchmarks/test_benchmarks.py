"""The kernel benchmark compares like with like, keeps what it measured, and sums it up rightly."""

import json
import os

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the benchmark runs in onnxruntime; install it: pip install onnxruntime")
from benchmarks import buffers, chains, cpu, floor, neighbours, placement, summary, timing
from rmsnorm_deploy.op.reference import rms_norm

TINY = ["--rows", "3", "--sizes", "48", "--threads", "1", "--rounds", "3"]


def run(tmp_path, *arguments):
    path = tmp_path / "out.json"
    status = cpu.main([*TINY, *arguments, "--json", str(path)])
    return status, json.loads(path.read_text())


# ---------------------------------------------------------------------------------------------------------------------
# The program


def test_a_run_records_every_pair_and_prints_the_summary(tmp_path, capsys):
    status, records = run(tmp_path, "--dtype", "float32")
    assert status == 0
    assert [(r["case"], r["baseline"]) for r in records] == [
        ("RMSNorm 3x48", "SimplifiedLayerNormalization"),
        ("RMSNorm 3x48", "LayerNormalization"),
        ("RMSNorm 3x48", "decomposed"),
        ("GeneralRMSNorm 3x48 6.25%", "LayerNormalization"),
        ("GeneralRMSNorm 3x48 6.25%", "RMSNorm, all features"),
        ("GeneralRMSNorm 3x48 25%", "LayerNormalization"),
        ("GeneralRMSNorm 3x48 25%", "RMSNorm, all features"),
        ("AddRMSNorm 3x48", "SkipSimplifiedLayerNormalization"),
        ("AddRMSNorm 3x48", "decomposed"),
    ]
    for r in records:
        assert (r["op"], r["rows"], r["size"], r["class"]) == (r["case"].split()[0], 3, 48, "in cache")
        assert (r["dtype"], r["threads"], r["rounds"]) == ("float32", 1, 3)
        assert r["ours_spread_us"][0] <= r["ours_us"] <= r["ours_spread_us"][1]
        assert r["baseline_spread_us"][0] <= r["baseline_us"] <= r["baseline_spread_us"][1]
        assert 0 < r["ratio_spread"][0] <= r["ratio"] <= r["ratio_spread"][1]
        # each median is of three rounds, so the ratio of medians lies between the extreme ratios of rounds
        assert 0.2 < r["ratio"] / (r["baseline_us"] / r["ours_us"]) < 5
        assert r["floor_us"] == min(f for f in (r["plain_floor_us"], r["streaming_floor_us"]) if f is not None) > 0
        assert r["machine"]
    assert records[0]["ours_us"] == records[1]["ours_us"] == records[2]["ours_us"]
    printed = capsys.readouterr()
    assert "SkipSimplifiedLayerNormalization" in printed.out
    assert "2/2" in printed.err


def test_a_baseline_without_a_kernel_is_said_to_be_missing(tmp_path, capsys):
    _, records = run(tmp_path, "--dtype", "bfloat16", "--only", "AddRMSNorm")
    said = capsys.readouterr().err
    for name in ("SkipSimplifiedLayerNormalization", "decomposed"):
        recorded = any(r["baseline"] == name for r in records)
        assert recorded != (f"AddRMSNorm bfloat16: no {name} baseline" in said)


def test_two_threads_are_also_compared_with_one(tmp_path):
    _, records = run(tmp_path, "--dtype", "float16", "--only", "AddRMSNorm", "--threads", "2")
    assert {r["baseline"] for r in records} >= {"AddRMSNorm, 1 thread", "SkipSimplifiedLayerNormalization"}
    assert {r["threads"] for r in records} == {2}


def test_an_interrupt_keeps_what_was_measured(tmp_path, monkeypatch):
    measured = cpu.Measurement.run

    def interrupted(self, *arguments):
        if self.group.kind.value == "AddRMSNorm":
            raise KeyboardInterrupt
        measured(self, *arguments)

    monkeypatch.setattr(cpu.Measurement, "run", interrupted)
    status, records = run(tmp_path, "--dtype", "float32")
    assert status == 130
    assert {r["op"] for r in records} == {"RMSNorm", "GeneralRMSNorm"}


@pytest.mark.parametrize(
    ("only", "cases"),
    [
        ("RMSNorm", {"RMSNorm 3x48"}),
        ("GeneralRMSNorm", {"GeneralRMSNorm 3x48 6.25%", "GeneralRMSNorm 3x48 25%"}),
        ("25%", {"GeneralRMSNorm 3x48 6.25%", "GeneralRMSNorm 3x48 25%"}),
        ("3x48 6", {"GeneralRMSNorm 3x48 6.25%"}),
        ("Add", {"AddRMSNorm 3x48"}),
        ("4x48", set()),
    ],
)
def test_only_takes_an_operator_or_a_part_of_the_case(only, cases):
    groups = cpu.grid(cpu.parse([*TINY, "--dtype", "float32", "--only", only]))
    assert {case for group in groups for case in group.cases} == cases


@pytest.mark.parametrize(
    "arguments", [["--dtype", "float8"], ["--threads", "2,4"], ["--rows", "0"], ["--sizes", "many"]]
)
def test_senseless_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        cpu.parse(arguments)
    assert arguments[0] in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------------
# What is compared


def expected(form, x, residual, scale, bias, part):
    """The norm in float64, and the sum."""
    total = x if residual is None else x + residual
    if form == "LayerNormalization":
        centred = total - total.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + chains.EPSILON) * scale + bias, total
    return rms_norm(total, scale, epsilon=chains.EPSILON, partial_size=part)


@pytest.mark.parametrize("dtype", chains.DTYPES)
@pytest.mark.parametrize(
    ("form", "residual", "part"),
    [
        ("RMSNorm", False, None),
        ("GeneralRMSNorm", False, 3),
        ("SimplifiedLayerNormalization", False, None),
        ("LayerNormalization", False, None),
        ("decomposed", False, None),
        ("AddRMSNorm", True, None),
        ("SkipSimplifiedLayerNormalization", True, None),
        ("decomposed", True, None),
    ],
)
def test_every_form_computes_its_norm(form, residual, part, dtype):
    chain = chains.Chain(form, 2, 24, dtype, 3, residual, part)
    if form == "decomposed" and dtype == "bfloat16":
        pytest.skip("onnxruntime multiplies no bfloat16 on the CPU")
    numpy_type = chains.DTYPES[dtype][1]
    memory = buffers.Buffers(2, 24, dtype, 2 if residual else 1)
    memory.bind(chains.session(chain, 1), chain)[0]()
    inputs, outputs = ([a.view(numpy_type).reshape(2, 24).astype(np.float64) for a in side] for side in memory.sets[0])
    constants = {t.name: t.raw_data for t in chains.build(chain).graph.initializer}
    scale, bias = (
        np.frombuffer(constants.get(name, bytes(48 * 8)), numpy_type)[:24].astype(np.float64)
        for name in ("scale", "bias")
    )
    y, total = inputs[0], inputs[1] if residual else None
    for _ in range(chain.length):
        y, total = expected(form, y, total if residual else None, scale, bias, part)
    tolerance = 16 * float(ml_dtypes.finfo(numpy_type).eps)
    np.testing.assert_allclose(outputs[0], y, rtol=tolerance, atol=tolerance)
    if residual:
        np.testing.assert_allclose(outputs[1], total, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_decomposed_form_stays_decomposed(dtype, residual):
    chain = chains.Chain("decomposed", 2, 24, dtype, 2, residual)
    chains.check_not_fused(chain)
    found = chains.optimized_operators(chain)
    assert (found["ReduceMean"], found["Sqrt"]) == (2, 2)


def test_a_fused_form_is_not_taken_for_a_decomposed_one():
    with pytest.raises(AssertionError, match="fused"):
        chains.check_not_fused(chains.Chain("SimplifiedLayerNormalization", 2, 24, "float32", 2))


def test_beyond_the_cache_the_buffers_exceed_it_several_times(monkeypatch):
    monkeypatch.setattr(buffers, "IN_CACHE_BYTES", 4096)
    monkeypatch.setattr(buffers, "BEYOND_BYTES", 8192)
    monkeypatch.setattr(buffers, "last_level_cache", lambda: 40000)
    memory = buffers.Buffers(8, 256, "float16", 1)
    assert (memory.size_class, memory.moved_bytes) == ("beyond", 8192)
    assert len(memory.sets) == 20
    places = {a.ctypes.data for inputs, outputs in memory.sets for a in (*inputs, *outputs)}
    assert len(places) == 40
    assert not any(place % 64 for place in places)
    assert len(buffers.Buffers(1, 16, "float16", 1).sets) == 1


@pytest.mark.parametrize(
    ("size", "name"),
    [(4 << 20, "in cache"), ((4 << 20) + 1, "middle"), ((16 << 20) - 1, "middle"), (16 << 20, "beyond")],
)
def test_size_classes(size, name):
    assert buffers.size_class(size) == name


# ---------------------------------------------------------------------------------------------------------------------
# The clock and the floor


def test_every_contestant_runs_in_every_round_and_on_every_buffer():
    ran = []
    contestants = [
        timing.Contestant([lambda n=n, i=i: ran.append((n, i)) for i in range(3)], 1, threads=1, round_us=0)
        for n in range(3)
    ]
    ran.clear()
    timing.alternate(contestants, judged=3, most_rounds=6, seconds=60, precision=0)
    assert [len(c.rounds) for c in contestants] == [6, 6, 6]
    first = [n for n, _ in ran[:: len(ran) // 6]]
    assert set(first) == {0, 1, 2}  # none is always the first
    assert {i for _, i in ran} == {0, 1, 2}


def test_rounds_end_when_the_ratios_are_known():
    def fixed(values):
        contestant = timing.Contestant([lambda: None], 1, threads=1)
        source = iter(values)
        contestant.round = lambda: contestant.rounds.append(next(source))
        return contestant

    steady = [fixed([2.0] * 50), fixed([3.0] * 50), fixed(range(1, 51))]
    timing.alternate(steady, judged=2, most_rounds=50, seconds=60, precision=0.01)
    assert len(steady[0].rounds) == timing.LEAST_ROUNDS
    unsteady = [fixed([2.0] * 50), fixed([3.0, 4.0] * 25)]
    timing.alternate(unsteady, judged=2, most_rounds=50, seconds=60, precision=0.01)
    assert len(unsteady[0].rounds) == 50
    assert timing.ratios(*unsteady) == [1.5, 2.0] * 25


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("length", [1, 63, 4096, 300_001])
def test_copies_copy_everything_and_nothing_else(length, streaming, threads):
    rng = np.random.default_rng(0)
    sources = [rng.integers(0, 256, length, np.uint8) for _ in range(2)]
    memory = [np.zeros(length + 192, np.uint8) for _ in sources]
    starts = [-m.ctypes.data % 64 for m in memory]
    targets = [m[s : s + length] for m, s in zip(memory, starts, strict=True)]
    floor.copier(targets, sources, streaming=streaming, threads=threads, repetitions=2)()
    for source, target, whole, start in zip(sources, targets, memory, starts, strict=True):
        np.testing.assert_array_equal(target, source)
        assert not whole[:start].any()
        assert not whole[start + length :].any()


def test_each_thread_has_a_cpu_of_its_own(monkeypatch):
    monkeypatch.setattr(placement, "cpus", lambda: (2, 3, 7))
    assert placement.worker_cpus(1) == ()
    assert placement.worker_cpus(3) == (3, 7)
    assert placement.onnxruntime_affinities(3) == "4;8"
    assert placement.onnxruntime_affinities(4) == ""


@pytest.mark.skipif(len(placement.cpus()) < 2, reason="pinning needs Linux and two CPUs")
def test_the_calling_thread_is_pinned_and_freed_again():
    before = os.sched_getaffinity(0)
    with placement.pinned(2):
        assert os.sched_getaffinity(0) == {placement.cpus()[0]}
    assert os.sched_getaffinity(0) == before
    with placement.pinned(1):
        assert os.sched_getaffinity(0) == before


def test_what_other_processes_use_is_counted(tmp_path, monkeypatch):
    ticks = os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"
    monkeypatch.setattr(neighbours, "STAT", stat)
    assert neighbours.Neighbours().share() is None
    clocks = {"process_time": [10.0, 11.0], "perf_counter": [100.0, 102.0]}
    for name, times in clocks.items():
        monkeypatch.setattr(neighbours.time, name, iter(times).__next__)
    monkeypatch.setattr(neighbours.os, "cpu_count", lambda: 2)
    stat.write_text(f"cpu  {10 * ticks} 0 0 {50 * ticks} 0 0 0 0 7 7\n")
    since = neighbours.Neighbours()
    # 1 s user, 0.5 s system and 0.5 s stolen, of which 1 s was ours, in 2 s of 2 CPUs
    stat.write_text(f"cpu  {11 * ticks} 0 {ticks // 2} {90 * ticks} {ticks} 0 0 {ticks // 2} 99 99\n")
    assert since.share() == pytest.approx(0.25)


# ---------------------------------------------------------------------------------------------------------------------
# The summary


def record(case, ratio, *, rows=16, dtype="float32", baseline="LayerNormalization", threads=1, size_class="in cache"):
    return {
        "case": case,
        "op": case.split()[0],
        "rows": rows,
        "size": 64,
        "dtype": dtype,
        "threads": threads,
        "ours_us": 2.0,
        "ours_spread_us": [1.9, 2.1],
        "baseline": baseline,
        "baseline_us": 2.0 * ratio,
        "baseline_spread_us": [1.9 * ratio, 2.1 * ratio],
        "ratio": ratio,
        "ratio_spread": [ratio * 0.9, ratio * 1.1],
        "floor_us": 0.5,
        "plain_floor_us": 0.5,
        "streaming_floor_us": 0.7,
        "class": size_class,
        "machine": "a machine",
        "onnxruntime": "1.0",
    }


RECORDS = [
    record("RMSNorm 1x64", 0.5, rows=1),
    record("RMSNorm 16x64", 2.0),
    record("RMSNorm 512x64", 8.0, rows=512),
    record("RMSNorm 4096x64", 1.25, rows=4096, size_class="beyond"),
    record("RMSNorm 16x64", 3.0, baseline="decomposed"),
    record("RMSNorm 16x64", 3.0, dtype="float16"),
    record("GeneralRMSNorm 16x64 25%", 5.0),
    record("GeneralRMSNorm 16x64 6.25%", 6.0),
]


def cells(text, *first):
    """The cells of the rows of Markdown tables that begin with these."""
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row[len(first) :] for row in rows if tuple(row[: len(first)]) == first]


def test_the_summary_has_geometric_means_and_the_smallest_ratio():
    text = summary.text(RECORDS, markdown=True)
    # 1 row, in cache, middle, beyond, 16 rows or more, smallest
    means = cells(text, "RMSNorm", "LayerNormalization", "float32")
    assert means == [["0.50", "4.00", "-", "1.25", "2.71", "0.50 (1x64)"]]
    assert cells(text, "GeneralRMSNorm 25%", "LayerNormalization", "float32")[0][1] == "5.00"
    assert cells(text, "GeneralRMSNorm 6.25%", "LayerNormalization", "float32")[0][1] == "6.00"


def test_the_summary_has_the_time_saved_and_the_distance_to_the_floor():
    saved, floors = cells(summary.text(RECORDS, markdown=True), "RMSNorm", "float32")
    assert saved == ["-100%", "75%", "-", "20%", "-100% to 88%"]
    assert floors == ["0.25", "0.25", "-", "0.25", "0.25 (1x64)"]


def test_the_summary_lists_what_is_slower_and_what_is_missing():
    text = summary.text([*RECORDS, record("RMSNorm 16x128", 0.97), record("RMSNorm 16x896", 0.96)], markdown=True)
    rows = [
        line.split("|")[1].strip()
        for line in text.split("less than 0.97 times as fast")[1].splitlines()
        if line.startswith("|")
    ]
    assert rows == ["case", "---", "RMSNorm 1x64", "RMSNorm 16x896"]
    assert "RMSNorm float16: decomposed" in text


def test_files_are_merged_and_the_last_measurement_counts(tmp_path, capsys):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    paths[0].write_text(json.dumps(RECORDS[:2]))
    paths[1].write_text(json.dumps([record("RMSNorm 16x64", 1.5), record("RMSNorm 16x64", 7.0, threads=2)]))
    assert cpu.main(["--summary", *map(str, paths), "--markdown"]) == 0
    found = cells(capsys.readouterr().out, "RMSNorm", "LayerNormalization", "float32")
    assert found == [
        ["0.50", "1.50", "-", "-", "1.50", "0.50 (1x64)"],
        ["-", "7.00", "-", "-", "7.00", "7.00 (16x64)"],
    ]


def test_plain_text_and_markdown_hold_the_same_numbers():
    plain, marked = (summary.text(RECORDS, markdown=m) for m in (False, True))
    numbers = [
        [word for line in text.splitlines() if "---" not in line for word in line.replace("|", " ").split()]
        for text in (plain, marked)
    ]
    assert numbers[0] == [word for word in numbers[1] if word != "####"]
