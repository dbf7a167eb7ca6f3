"""Whether an installed wheel works on this machine: fuse, verify and a session with kernels, for the four samples.

    python ops/wheels/try_installed.py [--pure]     # --pure: of the wheel without a library

It needs the samples' models beside it and no compiler, and takes the package from where Python finds it.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path

MODELS = Path(__file__).resolve().parents[2] / "samples" / "models"


def main() -> int:
    """Print what was done and how long it took; the status is 1 where something is not as it should be."""
    begun = time.monotonic()
    pure = "--pure" in sys.argv[1:]
    import rmsnorm_deploy
    from rmsnorm_deploy.check.doctor import examine
    from rmsnorm_deploy.run.inputs import make_inputs

    if MODELS.parents[1] in Path(rmsnorm_deploy.__file__).resolve().parents:
        print("the package was taken from its sources, not from a wheel")
        return 1
    found = examine()
    print(f"Python {found['python']}, onnxruntime {found['versions']['onnxruntime']}, {found['machine']}")
    print(f"kernels: {', '.join(found['instruction_sets']) or 'none'}")
    if found["ready"] == pure:
        print(found["library"]["problem"] or "the library is there, and should not be")
        return 1
    import onnx

    models = sorted(MODELS.glob("*.onnx"))
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            fused, report = rmsnorm_deploy.fuse(model)
            path = Path(folder) / model.name
            rmsnorm_deploy.save(fused, path, source=model)
            result = rmsnorm_deploy.verify(model, path)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                session = rmsnorm_deploy.session(path)
            outputs = session.run(None, make_inputs(onnx.load(path)))
            print(f"{model.stem}: {report.summary()}; {'verified' if result.passed else result.summary()}")
            if not result.passed or not report.fused or not outputs or bool(said) != pure:
                print("\n".join(str(w.message) for w in said))
                return 1
    print(f"{time.monotonic() - begun:.1f} s")
    return 0 if models else 1


if __name__ == "__main__":
    sys.exit(main())
