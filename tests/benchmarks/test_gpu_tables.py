"""What gpu-check makes of its records: tables, bars, predictions."""

from pathlib import Path

from benchmarks.gpu import counters, predictions, profiled, table
from benchmarks.gpu.cases import grid

ROOT = Path(__file__).resolve().parents[2]


def record(**changes):
    values = {"op": "RMSNorm", "dtype": "float16", "rows": 32768, "size": 4096, "contestant": "ours", "us": 10.0}
    values |= {"variant": "plain", "of_copy": 0.95, "over_ours": 1.0, "beyond_l2": True, "off_units": 0.5}
    return values | changes


def test_what_the_kernels_have_to_reach():
    assert table.unmet([record()]) == []
    assert table.unmet([record(of_copy=0.89)]) == ["RMSNorm float16 32768x4096: 89% of the copy's speed"]
    assert table.unmet([record(of_copy=0.89, beyond_l2=False)]) == []
    assert table.unmet([record(size=128, of_copy=0.81)]) == []
    assert len(table.unmet([record(size=128, of_copy=0.79)])) == 1
    peer = record(contestant="Triton", over_ours=0.97)
    assert table.unmet([record(), peer]) == ["RMSNorm float16 32768x4096: 0.97 times as fast as Triton"]
    assert table.unmet([record(of_copy=0.5, size=4097)]) == []
    assert len(table.unmet([record(of_copy=0.5, variant="gemma")])) == 1
    assert table.unmet([record(), record(contestant="TVM, ours", over_ours=0.5)]) == []
    measured = {
        "machine": {"name": "A GPU", "capability": "9.0", "driver_cuda": "13.0"},
        "peers": ["Triton"],
        "records": [record(), peer, record(rows=1, us=2.0), record(contestant="Triton", rows=1, over_ours=1.5)],
        "host_us": {"ours": 3.25},
    }
    result = {"steps": [], "measured": measured, "decode": None, "counters": None}
    text = table.text(result, markdown=True)
    assert "| RMSNorm | float16 |  | 32768 | 4096 | 10.0 (95%) | - |" in text
    assert "| RMSNorm | Triton | 2 | 1.21 | 0.97 (float16 32768x4096) | 1 |" in text
    assert "* RMSNorm float16 32768x4096: 0.97 times as fast as Triton" in text
    assert "| ours | 3.25 |" in text


def test_what_ncu_says():
    text = '==PROF== begins\n"ID","Kernel Name","Metric Name","Metric Value"\n'
    for number, value in (("0", "1,024"), ("1", "n/a"), ("10", "7")):
        text += f'"{number}","k(int, float)","gpu__time_duration.sum","{value}"\n'
    assert counters.parsed(text + "==PROF== ends\n") == [{"ns": 1024.0}, {"ns": 7.0}]
    assert counters.parsed("==ERROR== ERR_NVGPUCTRPERM") == []


def test_the_readme_has_the_predictions():
    text = (ROOT / "benchmarks" / "README.md").read_text()
    begin, end = "predictions: begin; python -m benchmarks.gpu.predictions -->\n\n", "\n\n<!-- gpu predictions: end"
    assert text[text.index(begin) + len(begin) : text.index(end)] == predictions.text(None, markdown=True)


def test_a_prediction_is_replaced_by_what_was_measured():
    """Every claim is about something that gpu-check measures, and finds its value there."""
    cases = {(c.op, c.dtype, c.rows, c.size, c.variant) for c in grid()}
    counted = {(c.op, c.dtype, c.rows, c.size, c.variant) for c in profiled.cases(small=False)}
    records, watched = [], []
    for p in predictions.PREDICTIONS:
        assert p.h100[0] < p.h100[1]
        assert p.h200[0] < p.h200[1]
        if p.place is not None:
            assert p.place in (counted if p.of == "counters" else cases), p
            named = dict(zip(("op", "dtype", "rows", "size", "variant"), p.place, strict=True))
            if p.of == "records":
                records.append(named | {"contestant": p.name, p.field: p.h200[0]})
            else:
                watched.append({k: v for k, v in named.items() if k != "variant"} | {p.field: p.h200[0]})
    compiled = {p.place for p in predictions.PREDICTIONS if p.name == "torch.compile"}
    assert compiled <= {(c.op, c.dtype, c.rows, c.size, c.variant) for c in grid() if c.telling}
    result = {
        "measured": {"machine": {"name": "NVIDIA H200"}, "records": records, "host_us": {"ours": 9.0, "no rows": 1.0}},
        "decode": {"records": [{"name": n, "us": 1.0} for n in ("as exported", "our norms", "our norms, CUDA graph")]},
        "counters": watched,
    }
    verdicts = {line[0]: line[4] for line in predictions.rows(result)}
    assert "not yet" not in verdicts.values()
    assert verdicts["RMSNorm 1x4096"] == "2.3, held"
    assert verdicts["host time of a launch: ours"] == "9, more"
    assert verdicts["decoding step: our norms over our norms, CUDA graph"] == "1, less"
    assert {line[4] for line in predictions.rows(None)} == {"not yet"}
