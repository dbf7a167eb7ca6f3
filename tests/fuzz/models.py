"""Fuzzing with models: mutations of seeds, each through the whole path."""

import base64
import collections
import random
import sys
from pathlib import Path

from tests.fuzz.mutations import mutate
from tests.fuzz.path import examine
from tests.fuzz.process import Worker
from tests.fuzz.seeds import seed_model

NOT_OURS = ("mutate", "check", "run the original")
"""Steps whose deaths are others' faults: onnxruntime with the original."""


def model_of(seed, number):
    """The names of the mutations, and the model's bytes: the same for every process."""
    rng = random.Random(f"model {seed} {number}")
    return mutate(seed_model(rng), rng)


def work(request, say):
    """One model by its number, or given as bytes: findings and counts."""
    if "data" in request:
        data, seed = base64.b64decode(request["data"]), request["seed"]
    else:
        say("mutate")
        seed = f"{request['seed']} {request['number']}"
        _, data = model_of(request["seed"], request["number"])
    findings, counts = examine(data, seed, say, request.get("thorough", True))
    return {"findings": [(f.step, f.kind, f.text) for f in findings], "counts": counts}


def findings_of(worker, request):
    """All findings of one model, those of a death included, and the counts."""
    result = worker(request)
    answer = result.answer or {"findings": [], "counts": {}}
    found = [tuple(f) for f in answer["findings"]]
    if result.death and result.step not in NOT_OURS:
        found.append((result.step, result.death, ""))
    return found, answer["counts"]


def _keep(folder, name, data, seed, step, kind, text):
    from tests.fuzz.minimise import minimised  # which imports this file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.onnx").write_bytes(minimised(data, seed, step, kind))
    (folder / f"{name}.txt").write_text(f"seed {seed}\n{step}: {kind}\n{text}\n")


def _fault(step, kind):
    """What is taken for one fault: an error in one place, whatever leads there; wrong numbers, however they are run."""
    if kind.startswith(("other numbers", "another shape")):
        return step
    if kind.startswith("does not run"):
        return f"{step}: does not run"
    return kind if " in " in kind else f"{step}: {kind}"


def campaign(seed, first, count, kept, report=sys.stdout.write, without=()):
    """Run ``count`` models; the first one of each fault is written to the folder ``kept``. The faults, and counts.

    Models with a mutation of ``without`` are left out: what is known, and takes long, need not be found again.
    """
    faults, counts = {}, collections.Counter()
    with Worker("tests.fuzz.models") as worker:
        for number in range(first, first + count):
            if without and set(without) & set(model_of(seed, number)[0]):
                continue
            found, counted = findings_of(worker, {"seed": seed, "number": number})
            counts.update(counted)
            for step, kind, text in found:
                if (fault := _fault(step, kind)) not in faults:
                    faults[fault] = number
                    names, data = model_of(seed, number)
                    report(f"FOUND at model {number} ({', '.join(names)}): {step}: {kind}\n{text}\n")
                    if kept is not None:
                        _keep(Path(kept), f"{seed}-{number}-{len(faults)}", data, f"{seed} {number}", step, kind, text)
    report("".join(f"{n:8d}  {what}\n" for what, n in sorted(counts.items())))
    return faults, counts
