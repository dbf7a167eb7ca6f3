"""Sets of sessions: what is saved is found, nothing is where there is nothing, and weights have one place."""

import math

import numpy as np
import pytest
from onnx import helper, numpy_helper

from benchmarks import paper, sets
from benchmarks.models import language


class Clocked:
    """Stands for the clock: a run takes what it says, besides what its session's place makes of it."""

    def __init__(self, monkeypatch, spread, seed=0):
        self.now = 0.0
        self.rng, self.spread = np.random.default_rng(seed), spread
        self.made = []
        monkeypatch.setattr("benchmarks.timing.time.thread_time_ns", lambda: int(self.now))
        monkeypatch.setattr(sets.gc, "collect", lambda: 0)  # nothing here is large, and all that other tests left is

    def maker(self, name, microseconds):
        def make():
            self.made.append(name)
            of_place = math.exp(self.spread * self.rng.standard_normal())

            def run():
                self.now += 1000 * microseconds * of_place * math.exp(0.01 * self.rng.standard_normal())

            return run

        return make


def test_a_model_against_itself_saves_nothing_and_the_interval_says_so(monkeypatch):
    """Sessions differ by 5 %, for as long as they live: nearly all of many intervals have 0 in them, as they say."""
    monkeypatch.setattr(sets, "MOST_SETS", 8)
    inside = 0
    for seed in range(40):
        clock = Clocked(monkeypatch, 0.05, seed)
        found = sets.measure(clock.maker("a", 5000.0), clock.maker("b", 5000.0), quick=False, seconds=0.0)
        assert len(found.saved) == 8
        for logarithms in (found.saved, found.control):
            saved, low, high = sets.interval(logarithms)
            assert low < saved < high
            assert high - low < 0.25
            inside += low <= 0 <= high
    assert 0.85 * 80 <= inside < 80, "neither too narrow nor so wide that it says nothing"


def test_what_is_saved_is_found(monkeypatch):
    clock = Clocked(monkeypatch, 0.002)
    found = sets.measure(clock.maker("a", 5000.0), clock.maker("b", 4500.0), quick=False, seconds=0.0)
    saved, low, high = sets.interval(found.saved)
    assert low <= 0.1 <= high
    assert saved == pytest.approx(0.1, abs=0.01)
    assert len(found.saved) == sets.LEAST_SETS, "no more than it takes"
    # each is made first, second and last as often
    places = [tuple(clock.made[i : i + 3]) for i in range(0, len(clock.made), 3)]
    assert [sum(p[i] == "b" for p in places) for i in range(3)] == [2, 2, 2]


def test_the_interval_is_student_s():
    for count, quantile in ((6, 2.571), (12, 2.201), (24, 2.069)):
        values = np.linspace(-1, 1, count) / 100
        half = (math.log(1 - sets.interval(values)[1]) - math.log(1 - sets.interval(values)[2])) / 2
        wanted = quantile * np.std(values, ddof=1) / math.sqrt(count)
        assert wanted * 0.98 <= half <= wanted * 1.03


def test_weights_of_all_sessions_are_in_the_same_place():
    """The large matrices of products are handed in, and nothing else; what runs is still the model."""
    model = language.gpt2("float32", 2, 128, count=1)
    matrices = sets._matrices(model)
    assert sorted(matrices.values()) == sorted([(128, 128)] * 8 + [(128, 512), (512, 128)] * 2)
    place, feeds, made = sets.Place(), {"tokens": np.zeros((1, 1), np.int64)}, []

    def session(given):
        made.append(paper._session(given))
        return made[-1]

    first, second = (place.runner(session, model, feeds) for _ in range(2))
    assert {i.name for i in made[0].get_inputs()} == {"tokens", *matrices}
    assert len(place._held) == 12, "both sessions read the same"
    results = []
    for run in (first, second):
        run()
        (binding,) = run.args
        results.append(binding.copy_outputs_to_cpu()[0])
    assert np.array_equal(*results)
    # with what was handed in the model itself gives the same
    held = {t.name: t for t in model.graph.initializer}
    count = dict.fromkeys(matrices.values(), 0)
    for name, shape in matrices.items():
        values = place._matrix(shape, count[shape]).numpy()
        held[name].CopyFrom(numpy_helper.from_array(values, name))
        count[shape] += 1
    np.testing.assert_allclose(paper._session(model).run(None, feeds)[0], results[0], rtol=1e-4, atol=1e-5)


def test_a_matrix_that_others_read_stays():
    model = language.gpt2("float32", 1, 128, count=1)
    product = next(n for n in model.graph.node if n.op_type == "MatMul")
    model.graph.node.append(helper.make_node("Identity", [product.input[1]], ["more"]))
    assert product.input[1] not in sets._matrices(model)
