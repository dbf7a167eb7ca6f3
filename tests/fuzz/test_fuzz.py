"""What the fuzzers find with a fixed seed, which is nothing; and that they would find what there is."""

import collections
import os
import random
import re
import shutil

import numpy as np
import onnx
import pytest

import rmsnorm_deploy
from rmsnorm_deploy.errors import ModelError
from tests.fuzz import (
    batches,
    calls,
    compiled,
    conversion,
    minimise,
    models,
    numbers,
    octets,
    path,
    process,
    recognition,
    texts,
)
from tests.fuzz.mutations import MUTATIONS, mutate, pick
from tests.fuzz.process import Worker
from tests.fuzz.seeds import FORMS, spelled
from tests.support.native import compiler, output_of
from tests.support.run import run
from tests.support.spellings.norms import Spelling, build

SEED = 7


def quiet(text):
    pass


# -- a fixed seed -----------------------------------------------------------------------------------------------------


def test_models():
    faults, counts = models.campaign(SEED, 0, 100, None, quiet)
    assert not faults
    # what runs nothing, or fuses nothing, shows nothing
    assert counts["models with norms"] > 40
    assert sum(n for what, n in counts.items() if what.startswith("ran ")) > 40
    assert counts["compared in float64"] > 10
    assert counts["explain refused"] > 2


@pytest.mark.parametrize(
    ("kind", "count"), [("octets", 600), ("recognition", 600), ("texts", 1000), ("conversion", 40)]
)
def test_batches(kind, count):
    assert not batches.campaign(f"tests.fuzz.{kind}", SEED, 0, count, None, quiet)


def test_conversion_runs_what_it_converts():
    counts = collections.Counter()
    for number in range(40):
        conversion.attempt(conversion.mutated(SEED, number), True, lambda what: counts.update([what]))
    assert counts["converted"] > 10
    assert counts["originals that run"] > 8
    assert counts["compared in float64"] > 8


def test_conversion_finds_wrong_numbers(monkeypatch):
    """A weight that keeps its mean."""
    import rmsnorm_deploy.converting.contents as contents

    monkeypatch.setattr(contents, "centred", lambda array, axis, scales=(): array)
    model = conversion.seed_model(random.Random(3))
    assert conversion.attempt(model.SerializeToString(), True)[0].startswith("other numbers")


def built(tmp_path_factory, source):
    """A fuzzer in C++, compiled."""
    made = tmp_path_factory.mktemp(source.stem) / source.stem
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{source.parents[2] / 'ops'}"]
    output_of(*compiler(), *flags, source, "-o", made, "-pthread", "-ldl")
    return made


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return built(tmp_path_factory, calls.PROGRAM)


def test_calls(program):
    status, said = calls.run(program, rmsnorm_deploy.library_path(), SEED, 0, 3000, threads=2)
    assert status == 0, said
    compared, refused = map(int, re.search(r"(\d+) calls compared, (\d+) refused", said).groups())
    assert compared > 2000
    assert refused > 700


@pytest.fixture(scope="module")
def bindings(tmp_path_factory):
    return built(tmp_path_factory, calls.BINDINGS)


def both_libraries():
    return rmsnorm_deploy.library_path(), rmsnorm_deploy.library_path(override=True)


@pytest.mark.parametrize("seed", [SEED, SEED + 1], ids=["1.24", "1.20"])
def test_bindings(bindings, seed):
    for library in both_libraries():
        status, said = calls.run(bindings, library, seed, 0, 1500, threads=2)
        assert status == 0, said
        compared, refused = map(int, re.search(r"(\d+) compared, (\d+) refused", said).groups())
        assert compared > 700
        assert refused > 200


# -- they can fail ----------------------------------------------------------------------------------------------------


def found_in(data, **options):
    return {(f.step, f.kind) for f in path.examine(data, "0", **options)[0]}


@pytest.fixture
def norm():
    return build(Spelling(shape=(2, 3, 8))).model


def test_a_whole_model_shows_nothing(norm):
    assert not found_in(norm.SerializeToString())


def test_an_error_of_another_kind_is_found(monkeypatch, norm):
    def broken(model):
        raise KeyError("x")

    monkeypatch.setattr(rmsnorm_deploy, "explain", broken)
    assert {step for step, _ in found_in(norm.SerializeToString())} >= {"explain"}


def test_an_error_of_ours_is_an_answer(monkeypatch, norm):
    def refusing(model):
        raise ModelError("it is broken")

    monkeypatch.setattr(rmsnorm_deploy, "explain", refusing)
    assert not found_in(norm.SerializeToString())


@pytest.mark.parametrize("form", FORMS)
def test_other_numbers_are_found(norm, form):
    fused, _ = rmsnorm_deploy.fuse(norm, form=form)
    assert not list(numbers.wrong_numbers(norm, fused, form, quiet, quiet))
    for node in fused.graph.node:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-3
    for tensor in pick.all_tensors(fused):  # where it is no attribute
        array = onnx.numpy_helper.to_array(tensor)
        if array.size == 1 and 5e-7 < array.reshape(-1)[0] < 2e-6:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.full_like(array, 1e-3), tensor.name))
    kinds = {kind for kind, _ in numbers.wrong_numbers(norm, fused, form, quiet, quiet)}
    assert "other numbers with the library" in kinds
    assert "other numbers in float64" in kinds


def test_bytes_that_differ_are_found(monkeypatch, norm):
    fuse, times = rmsnorm_deploy.fuse, []

    def varying(model, **options):
        fused, report = fuse(model, **options)
        times.append(1)
        fused.producer_name = str(len(times))
        return fused, report

    monkeypatch.setattr(rmsnorm_deploy, "fuse", varying)
    kinds = set()
    for seed in range(8):  # the second run is left out most often
        kinds |= {f.kind for f in path.examine(norm.SerializeToString(), seed)[0]}
    assert "other bytes the second time" in kinds


def test_errors_and_changing_answers_of_recognition_are_found(monkeypatch, norm):
    data, answers = norm.SerializeToString(deterministic=True), iter("ab")
    assert recognition.attempt(data, again=True) == ("", "")
    monkeypatch.setattr(recognition, "said", lambda model, proto: next(answers))
    assert recognition.attempt(data, again=True)[0] == "another answer the second time"
    assert recognition.attempt(data, again=False)[0].startswith("StopIteration in ")


def test_a_change_that_nobody_notices_is_found(monkeypatch, tmp_path):
    changed = texts.seeds()[texts.DESCRIPTION].replace(b'"rows"', b'"cows"')
    assert texts.attempt(texts.DESCRIPTION, changed, tmp_path) == ("", "")
    monkeypatch.setattr(texts.description, "require_unchanged", lambda folder, description: None)
    assert texts.attempt(texts.DESCRIPTION, changed, tmp_path)[0] == "a change went unnoticed"
    monkeypatch.setattr(texts.log, "read", lambda path: 1 // 0)
    assert texts.attempt(texts.LOG, b"{}", tmp_path)[0].startswith("ZeroDivisionError in ")


def test_a_result_that_is_no_model_is_found(monkeypatch, norm):
    fuse = rmsnorm_deploy.fuse

    def breaking(model, **options):
        fused, report = fuse(model, **options)
        fused.graph.node[0].input[0] = "nowhere"
        return fused, report

    monkeypatch.setattr(rmsnorm_deploy, "fuse", breaking)
    assert {kind for _, kind in found_in(norm.SerializeToString())} >= {"an invalid result"}


@pytest.fixture(scope="module")
def wrong_kernels(tmp_path_factory):
    made = tmp_path_factory.mktemp("wrong") / "libwrong.so"
    source = calls.PROGRAM.with_name("wrong_kernels.cpp")
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", f"-I{source.parents[2] / 'ops'}"]
    output_of(*compiler(), *flags, source, "-o", made, "-ldl")
    return made


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("epsilon", "units off"),
        ("partial", "units off"),
        ("forbidden", "a call that the contract forbids was taken"),
        ("refusal", "refused: "),
        ("scale", "scale or bias was written"),
        ("input", "a refused call has written"),
        ("quantised", "quantised is not what QuantizeLinear gives"),
        ("most", "the ends of a row are others"),
        ("place", "units off"),
        ("activation", "a gate behind the norm is wrong"),
        ("gate", "the gate was written"),
        ("wrong gate", "a gate that the contract forbids was taken"),
    ],
)
def test_wrong_kernels_are_found(monkeypatch, program, wrong_kernels, fault, said):
    monkeypatch.setenv("WRONG_KERNELS_OF", str(rmsnorm_deploy.library_path()))
    monkeypatch.setenv("RMSNORM_DEPLOY_FAULT", fault)
    status, text = calls.run(program, wrong_kernels, SEED, 0, 500)
    assert status == 1
    assert said in text


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("epsilon", "units off"),
        ("text", "refused without a text"),
        ("twice", "another number of domains"),
        ("leak", "statuses are left behind"),
    ],
)
def test_wrong_bindings_are_found(monkeypatch, tmp_path, bindings, fault, said):
    source = calls.BINDINGS.with_name("wrong_bindings.cpp")
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", f"-I{source.parents[2] / 'ops'}"]
    output_of(*compiler(), *flags, source, "-o", tmp_path / "libwrong.so", "-ldl")
    monkeypatch.setenv("WRONG_BINDINGS_OF", str(both_libraries()[1]))
    monkeypatch.setenv("RMSNORM_DEPLOY_FAULT", fault)
    status, text = calls.run(bindings, tmp_path / "libwrong.so", SEED, 0, 500)
    assert status == 1
    assert said in text


# -- the machinery ----------------------------------------------------------------------------------------------------


def test_the_same_numbers_give_the_same_models():
    for number in range(40):
        assert models.model_of(3, number) == models.model_of(3, number)
        assert octets.octets(3, number) == octets.octets(3, number)
    assert len({models.model_of(3, number)[1] for number in range(40)}) > 35


def test_every_mutation_changes_some_model():
    rng, idle = random.Random(1), collections.Counter(MUTATIONS)
    for _ in range(100):
        for name in MUTATIONS:
            model = spelled(rng) if rng.random() < 0.5 else rmsnorm_deploy.fuse(spelled(rng))[0]
            for helper in ("structure.into_an_if", "structure.into_a_function"):
                if rng.random() < 0.3:
                    mutate_once(model, helper, rng)
            before = model.SerializeToString(deterministic=True)
            mutate_once(model, name, rng)
            if model.SerializeToString(deterministic=True) != before:
                idle.pop(name, None)
        if not idle:
            break
    assert not list(idle)


def mutate_once(model, name, rng):
    try:
        MUTATIONS[name](model, rng)
    except (IndexError, ValueError, TypeError, KeyError, AttributeError):
        return


def test_half_of_the_models_still_run():
    """Wrong numbers are found only where there are numbers."""
    ran = 0
    for number in range(60):
        rng = random.Random(number)
        _, data = mutate(spelled(rng), rng)
        try:
            model = onnx.ModelProto.FromString(data)
            feeds = numbers.make_inputs(model)
            run(model, feeds, False)
            ran += 1
        except Exception:
            continue
    assert ran >= 15


def test_a_worker_says_how_its_process_ended(monkeypatch):
    monkeypatch.setattr(process, "SECONDS", 1)
    monkeypatch.setattr(process, "MEMORY", 2**28)
    with Worker("tests.fuzz.misbehaving") as worker:
        assert worker("well").answer == "well"
        for request, death in (
            ("die", "died by SIGSEGV"),
            ("leave", "ended with status 3"),
            ("spin", "more than 1 s"),
            ("grow", "more than 256 MiB"),
        ):
            result = worker(request)
            assert (result.answer, result.death, result.step) == (None, death, "first step")
        assert worker("print").answer == "print"
        assert worker("well").step == "last step"


def test_a_model_is_made_small(norm):
    large = onnx.ModelProto()
    large.CopyFrom(norm)
    for i in range(5):
        large.graph.node.append(onnx.helper.make_node("Identity", ["x"], [f"extra_{i}"]))
        large.graph.initializer.append(onnx.helper.make_tensor(f"unused_{i}", 1, [1], [1.0]))

    def shows(data):
        return any(n.op_type == "Sqrt" for n in onnx.ModelProto.FromString(data).graph.node)

    small = onnx.ModelProto.FromString(minimise.minimise(large.SerializeToString(), shows))
    assert [n.op_type for n in small.graph.node] == ["Sqrt"]
    assert not small.graph.initializer


def test_a_damaged_folder_is_told_from_a_whole_one(tmp_path):
    pytest.importorskip("tvm")
    if not shutil.which(os.environ.get("CXX", "g++")):
        pytest.skip("needs a C++ compiler")
    faults = compiled.campaign(SEED, 0, 12, tmp_path / "folder", quiet)
    assert not faults
