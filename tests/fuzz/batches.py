"""Executions that take a millisecond each: many of them in one request to a process of their own.

A kind of them is a module with ``one(seed, number, folder)``, which gives the kind of fault that an execution shows and
the error (both empty where there is none), with ``kept(seed, number)``, which gives the file that shows it, its
ending and its bytes, and with ``work``, which is :func:`of` its ``one``.
"""

import importlib
import sys
import tempfile
from pathlib import Path

from tests.fuzz.process import Worker

BATCH = 25
"""Executions of one request, where the module has no number of its own."""


def of(one):
    """``work`` of a module: a batch of executions by their numbers."""

    def work(request, say):
        found = []
        with tempfile.TemporaryDirectory() as folder:
            for number in range(request["first"], request["first"] + request["count"]):
                say(str(number))
                kind, text = one(request["seed"], number, Path(folder))
                if kind:
                    found.append((number, kind, text))
        return found

    return work


def campaign(name, seed, first, count, keep, report=sys.stdout.write):
    """Run ``count`` executions of the module ``name``; the first file of each fault is written to ``keep``.

    Returns:
        The faults, each with the number of the execution that showed it first.
    """
    module = importlib.import_module(name)
    faults, batch = {}, getattr(module, "BATCH", BATCH)
    with Worker(name) as worker:
        number, end = first, first + count
        while number < end:
            request = {"seed": seed, "first": number, "count": min(batch, end - number)}
            result = worker(request)
            found = [tuple(f) for f in result.answer or ()]
            number += request["count"]
            if result.death:
                at = int(result.step or request["first"])
                found.append((at, result.death, ""))
                if result.answer is None:
                    number = at + 1
            for at, kind, text in found:
                if kind not in faults:
                    faults[kind] = at
                    report(f"FOUND at {at}: {kind}\n{text}\n")
                    if keep is not None:
                        _keep(Path(keep), f"{name.rpartition('.')[2]}-{seed}-{at}", *module.kept(seed, at))
    return faults


def _keep(folder, stem, ending, data):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}{ending}").write_bytes(data)
