"""Where onnxruntime spends its time, by its profiler."""

from __future__ import annotations

import collections
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def times_by_operator(session: Callable[..., Any], model: Any, feeds: dict[str, Any], runs: int) -> dict[str, float]:
    """Microseconds of one run in each kind of operator: for each node, the least of several runs.

    Args:
        session: makes a session of a model, with attributes of the options by name.
        model: what runs.
        feeds: its inputs.
        runs: how often; the first does not count.
    """
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder) / "profile")
        profiled = session(model, enable_profiling=True, profile_file_prefix=prefix)
        for _ in range(runs + 1):
            profiled.run(None, feeds)
        events = json.loads(Path(profiled.end_profiling()).read_text())
    kinds: dict[str, str] = {}
    least: dict[str, list[float]] = collections.defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            node = f"{event['args'].get('node_index', '')} {event['name']}"
            kinds[node] = event["args"]["op_name"]
            least[node].append(float(event["dur"]))
    times: dict[str, float] = collections.defaultdict(float)
    for node, spent in least.items():
        times[kinds[node]] += min(spent[1:])
    return dict(times)
