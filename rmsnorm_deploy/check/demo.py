"""The demonstration: four small exported models, fused, verified and timed."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rmsnorm_deploy.check.bench import bench
from rmsnorm_deploy.check.comparison import TOLERANCE_ULPS
from rmsnorm_deploy.check.measured import BenchResult
from rmsnorm_deploy.check.result import VerificationResult
from rmsnorm_deploy.check.ulp import units
from rmsnorm_deploy.check.verify import verify
from rmsnorm_deploy.errors import MissingEnvironment
from rmsnorm_deploy.fusing.fuse import fuse
from rmsnorm_deploy.fusing.report import FusionReport
from rmsnorm_deploy.model.load import load_proto
from rmsnorm_deploy.model.save import save
from rmsnorm_deploy.op.dtypes import FLOAT16, float_type
from rmsnorm_deploy.run.inputs import is_float, make_inputs
from rmsnorm_deploy.run.registering import library_problem
from rmsnorm_deploy.run.runnable import Runnable
from rmsnorm_deploy.run.runner import Runner


@dataclasses.dataclass(frozen=True)
class DemoModel:
    """What the demonstration found for one model.

    Attributes:
        name: of the file, without its ending.
        report: of the fusion.
        verification: of the fused file against the original.
        timing: of the whole model and of one norm.
    """

    name: str
    report: FusionReport
    verification: VerificationResult
    timing: BenchResult

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "report": self.report.to_dict(),
            "verification": self.verification.to_dict(),
            "timing": self.timing.to_dict(),
        }


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The same fused file, run with and without the library.

    Attributes:
        name: of the model.
        difference: largest difference of an output, relative to the output's largest value.
        ulps: the same in ULP of the output's largest value, in the output's type.
        library: why the library was not used; empty where it was, and then the two were compared.
    """

    name: str
    difference: float
    ulps: float
    library: str

    @property
    def agrees(self) -> bool:
        """Whether the difference is rounding: within the tolerance of whole models; true where nothing was compared."""
        return self.ulps <= TOLERANCE_ULPS[FLOAT16][1]


def model_folder() -> Path:
    """Where the demonstration's models are.

    Raises:
        MissingEnvironment: the package was installed without them.
    """
    # a wheel carries them in the package; a checkout has them beside it
    for place in (parent / "samples" / "models" for parent in Path(__file__).parents[1:3]):
        if any(place.glob("*.onnx")):
            return place
    raise MissingEnvironment(
        "the demonstration's models are not where the package was installed",
        "Install it again, or run 'make demo' in a checkout of the repository.",
    )


def demonstrate(folder: Path | None = None, *, seconds: float = 1.5) -> Iterator[DemoModel]:
    """Fuse, save, verify and time each model, one after the other.

    Args:
        folder: with the models; the repository's by default.
        seconds: time for each comparison; there are two for a model.

    Raises:
        MissingEnvironment: the models or onnxruntime are not there.
    """
    for path in sorted((folder or model_folder()).glob("*.onnx")):
        with tempfile.TemporaryDirectory() as scratch:
            fused, report = fuse(path)
            output = Path(scratch) / "fused.onnx"
            save(fused, output, source=path)
            yield DemoModel(path.stem, report, verify(path, output), bench(path, output, seconds=seconds))


def agreement(path: Path) -> Agreement:
    """Fuse the model at ``path`` and run the one file twice: with the library's kernels and by its function bodies.

    Args:
        path: of the original.
    """
    problem = library_problem()
    if problem:
        return Agreement(path.stem, 0.0, 0.0, problem)
    with tempfile.TemporaryDirectory() as scratch:
        fused, _ = fuse(path)
        output = Path(scratch) / "fused.onnx"
        save(fused, output, source=path)
        model = Runnable.of(output)
        feeds = make_inputs(load_proto(path))
        difference = ulps = 0.0
        for kernel, body in zip(Runner(model, library=True)(feeds), Runner(model)(feeds), strict=True):
            if not is_float(kernel):
                continue
            a, b = kernel.astype(np.float64), body.astype(np.float64)
            difference = max(difference, float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)))
            ulps = max(ulps, units(a, b, float_type(kernel.dtype), axis=None))
        return Agreement(path.stem, difference, ulps, "")
