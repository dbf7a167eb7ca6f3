"""Every spelling is found, means what it meant, and runs with the library, without it, optimizer on and off."""

import dataclasses
import inspect

import numpy as np
import pytest

import rmsnorm_deploy
from rmsnorm_deploy.recognise import keepdims, normalised, output, statistic
from rmsnorm_deploy.recognise.grammar import ALTERNATIVES, OPENINGS
from tests.support.spellings.check import check
from tests.support.spellings.norms import (
    CLAMPS,
    INSIDE,
    KEEPDIMS,
    LAST_AXIS_MEANS,
    LAYOUTS,
    MEANS,
    NOISE,
    NORMALISE,
    SCALES,
    SQUARES,
    Spelling,
    build,
)

S = Spelling


def one_change_each():
    """Each alternative alone, in float32 and in both 16-bit orders."""
    for layout in LAYOUTS:
        base = S(layout=layout)
        yield base
        yield from (dataclasses.replace(base, square=n) for n in SQUARES)
        yield from (
            dataclasses.replace(base, mean=n, inside="none" if n == "l2" else "add")
            for n in MEANS
            if layout != "plain16" or n in ("mean", "mean_noop", "l2")
        )
        yield from (dataclasses.replace(base, inside=n) for n in INSIDE)
        yield from (dataclasses.replace(base, normalise=n) for n in NORMALISE)
        yield from (
            dataclasses.replace(base, scale=n) for n in SCALES if not (layout == "llamabf16" and n == "one_plus")
        )
        yield dataclasses.replace(base, residual=True)
        yield from (dataclasses.replace(base, keepdims=n) for n in KEEPDIMS)
    for layout in ("float32", "llama16", "gemma16"):
        base = S(layout=layout, inside="none")
        yield from (dataclasses.replace(base, mean=n) for n in LAST_AXIS_MEANS)
    base = S()
    yield from (
        dataclasses.replace(base, noise=n, noise_at=at) for n in NOISE for at in ("x", "mean", "normalised", "y")
    )
    yield from (
        dataclasses.replace(base, opset=o, constant_nodes=c) for o in (11, 13, 17, 20, 21, 23) for c in (False, True)
    )
    yield from (dataclasses.replace(base, axes=(2,)), dataclasses.replace(base, shape=(4, 6, 3, 5), axes=(1,)))
    yield from (
        dataclasses.replace(base, shape=(4, 6, 3, 5), axes=a) for a in ((-2, -1), (2, 3), (3, 2), (-3, -2, -1), (-3,))
    )
    yield from (
        dataclasses.replace(base, clamp=c, clamp_at=at, floor=0.01, inside="none")
        for c in CLAMPS
        for at in ("mean", "rms")
    )
    yield from (dataclasses.replace(base, mean="l2", inside="none", clamp=c, floor=1e-12) for c in CLAMPS)
    yield from (dataclasses.replace(base, outside=1e-3, inside=i) for i in ("none", "add"))
    yield from (
        dataclasses.replace(base, mean="l2", inside="none", outside=1e-8, scale=w, bias=b)
        for w in ("left", "none")
        for b in (False, True)
    )
    yield from (
        dataclasses.replace(base, partial=k, partial_op=o, bias=b)
        for k in (1, 2, 7)
        for o in ("Slice", "Split")
        for b in (False, True)
    )
    yield dataclasses.replace(base, partial=3, axes=(1,), shape=(4, 6, 3, 5))
    yield dataclasses.replace(base, epsilon=0.5)
    yield dataclasses.replace(base, epsilon=1.1920929e-07)


SPELLINGS = list(dict.fromkeys(one_change_each()))
STAGES = (statistic, keepdims, normalised, output)


@pytest.mark.parametrize("s", SPELLINGS, ids=str)
def test_spelling(s):
    check(s)


@pytest.fixture(scope="module")
def taken():
    """The labels in the reports of all spellings."""
    reports = [rmsnorm_deploy.fuse(build(s).model, dry_run=True)[1] for s in SPELLINGS]
    return {label for r in reports for norm in r.fused for label in norm.spelling.split(" > ")}


@pytest.mark.parametrize("label", [*OPENINGS, *(a.label for a in ALTERNATIVES)])
def test_a_spelling_takes_each_alternative(label, taken):
    assert label in taken


def test_alternatives_have_labels_and_functions_of_their_own():
    assert len({a.label for a in ALTERNATIVES}) == len(ALTERNATIVES)
    assert len({a.apply for a in ALTERNATIVES}) == len(ALTERNATIVES)


@pytest.mark.parametrize("stage", STAGES, ids=lambda m: m.__name__.rsplit(".", 1)[-1])
def test_no_alternative_is_left_out_of_its_table(stage):
    functions = dict(inspect.getmembers(stage, inspect.isfunction))
    written = {f for name, f in functions.items() if name[0] != "_" and f.__module__ == stage.__name__}
    assert {a.apply for a in stage.ALTERNATIVES} == written
    assert set(stage.ALTERNATIVES) <= set(ALTERNATIVES)


def test_the_product_of_all_stages_at_once():
    s = S(
        square="mul",
        mean="sum_div_n",
        inside="sub_negative",
        normalise="pow_minus_half",
        scale="one_plus",
        residual=True,
        noise="identity",
        constant_nodes=True,
        layout="llama16",
    )
    _, report = check(s)
    assert report.fused[0].op == "AddRMSNorm"


def test_report_names_what_was_done():
    _, report = check(S(residual=True))
    (norm,) = report.fused
    assert (norm.op, norm.residual, norm.rounding, norm.type) == ("AddRMSNorm", "r", "same", "FLOAT")
    assert norm.spelling == "Add > Pow(x,2) > ReduceMean > Add eps > Sqrt > Reciprocal > Mul(x,1/rms) > Mul(.,W)"
    assert len(norm.removed) == 8
    assert report.ops_before["ReduceMean"] == 1
    assert "ReduceMean" not in report.ops_after
    assert report.ops_after["rmsnorm_deploy::AddRMSNorm"] == 1
    assert np.all([isinstance(k, str) for k in report.to_dict()])
