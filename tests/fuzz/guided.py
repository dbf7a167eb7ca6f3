"""Fuzzing with bytes by atheris, which sees what they reach: ``python -m tests.fuzz.guided SEED COUNT FOLDER``.

It needs ``pip install atheris``.
"""

import logging
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["rmsnorm_deploy", "onnx_ir"]):
    from tests.fuzz.octets import attempt, seeds
    from tests.fuzz.process import SECONDS
    from tests.fuzz.seeds import SAMPLES


def guided(seed, count, folder):
    """Run ``count`` files; what was found, and what was reached, stays in ``folder``. A death or a limit ends it."""
    logging.disable(logging.CRITICAL)
    corpus, kept = Path(folder) / "corpus", Path(folder) / "found"
    for made in (corpus, kept):
        made.mkdir(parents=True, exist_ok=True)
    for i, data in enumerate(seeds(seed)):
        (corpus / f"seed-{i}").write_bytes(data)
    for sample in SAMPLES.glob("*.onnx"):
        (corpus / sample.name).write_bytes(sample.read_bytes())
    seen = set()
    scratch = tempfile.TemporaryDirectory()
    file = Path(scratch.name) / "m.onnx"

    def one(data):
        kind, text = attempt(data, file) if data else ("", "")
        if kind and kind not in seen:
            seen.add(kind)
            (kept / f"{len(seen)}-{seed}.onnx").write_bytes(data)
            sys.stderr.write(f"FOUND {kind}\n{text}\n")

    options = [f"-runs={count}", f"-seed={seed}", f"-timeout={SECONDS}", "-rss_limit_mb=1024", "-max_len=20000"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={kept}/", str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    guided(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
