"""Models that a fuzzer starts from: spellings drawn from the product of all stages, samples, and fused ones."""

import functools
from pathlib import Path

import onnx

import rmsnorm_deploy
from tests.support.graphs import if_model
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

SAMPLES = Path(__file__).parents[2] / "samples" / "models"
FORMS = tuple(form.value for form in rmsnorm_deploy.Form)


def spelling(rng):
    """A spelling; not every combination can be built."""
    rank = rng.randint(1, 4)
    shape = (*(rng.randint(1, 4) for _ in range(rank - 1)), rng.choice([2, 3, 7, 8, 16, 33, 1]))
    axes = (-1,)
    if rng.random() < 0.2:
        first = rng.randrange(rank)
        axes = tuple(range(first, rng.randint(first + 1, rank)))
    return Spelling(
        layout=rng.choice(LAYOUTS if rng.random() < 0.6 else ("float32",)),
        square=rng.choice(sorted(SQUARES)),
        mean=rng.choice(sorted(MEANS if axes != (-1,) else MEANS | LAST_AXIS_MEANS)),
        inside=rng.choice(sorted(INSIDE)),
        epsilon=rng.choice([1e-6, 1e-5, 1.1920929e-07, 1e-3, 0.5, 0.0]),
        outside=rng.choice([0.0, 0.0, 0.0, 1e-8, 1e-3, 0.5]),
        clamp=rng.choice(["", "", "", *CLAMPS]),
        clamp_at=rng.choice(["mean", "rms"]),
        floor=rng.choice([1e-5, 0.01, 1.0]),
        normalise=rng.choice(sorted(NORMALISE)),
        scale=rng.choice(SCALES),
        bias=rng.random() < 0.2,
        residual=rng.random() < 0.3,
        partial=rng.randint(1, max(1, shape[-1] - 1)) if rng.random() < 0.1 else 0,
        partial_op=rng.choice(["Slice", "Split"]),
        axes=axes,
        keepdims=rng.choice(["kept", *KEEPDIMS]),
        noise=rng.choice(sorted(NOISE)),
        noise_at=rng.choice(["x", "mean", "normalised", "y"]),
        shape=shape,
        opset=rng.choice([11, 13, 17, 18, 20, 21, 23]),
        constant_nodes=rng.random() < 0.3,
        seed=rng.randrange(4),
    )


def spelled(rng):
    """The model of a spelling that can be built."""
    while True:
        try:
            return build(spelling(rng)).model
        except Exception:  # a mean that has no epsilon, a scale that has no place: another one
            continue


@functools.cache
def _sample(name):
    return onnx.load(SAMPLES / name)


def sample(rng):
    """One of the exported models of this project."""
    model = onnx.ModelProto()
    model.CopyFrom(_sample(rng.choice(sorted(p.name for p in SAMPLES.glob("*.onnx")))))
    return model


def fused(rng):
    """A fused model."""
    while True:
        try:
            return rmsnorm_deploy.fuse(spelled(rng), form=rng.choice(FORMS))[0]
        except rmsnorm_deploy.RmsNormDeployError:
            continue


def seed_model(rng):
    """A model to begin with."""
    kind = rng.random()
    if kind < 0.01:
        return sample(rng)
    if kind < 0.04:
        return if_model()
    if kind < 0.22:
        return fused(rng)
    return spelled(rng)
