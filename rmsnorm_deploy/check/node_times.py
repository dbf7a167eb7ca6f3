"""How long each node of a model takes within it, by onnxruntime's own profile."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

from rmsnorm_deploy.run.inputs import Feeds
from rmsnorm_deploy.run.runnable import Runnable
from rmsnorm_deploy.run.runner import Runner

_END = "_kernel_time"
"""How the profile calls the work of a node, behind the node's name."""
_RUNS = (5, 200)
"""At least and at most; the first one is not counted."""


def node_times(model: Runnable, feeds: Feeds, *, library: bool, seconds: float, threads: int) -> dict[str, float]:
    """The median time of every node that onnxruntime runs, in microseconds, by name.

    onnxruntime's optimizer renames nodes and puts them together; nodes of the library's kernels keep their names.

    Args:
        model: what runs.
        feeds: its inputs.
        library: in the library's kernels.
        seconds: for all of it, about.
        threads: within an operator; 0 is onnxruntime's choice.
    """
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(model, library=library, threads=threads, profile=Path(folder) / "profile")
        run = runner.timed(feeds)
        run()
        started = time.perf_counter()
        run()
        took = max(time.perf_counter() - started, 1e-6)
        for _ in range(min(max(int(seconds / took), _RUNS[0]), _RUNS[1])):
            run()
        events = json.loads(runner.profiled().read_bytes())
    found: dict[str, list[float]] = {}
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(_END):
            found.setdefault(name.removesuffix(_END), []).append(float(event["dur"]))
    return {name: statistics.median(times[1:] or times) for name, times in found.items()}
