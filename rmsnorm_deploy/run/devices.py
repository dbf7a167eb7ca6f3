"""The providers and the device that a session is asked for, where options or arguments say so in their own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def names_on_devices(ort: Any, options: Any) -> list[str]:
    """The providers of session options that hold devices: onnxruntime tells only of a session which they are.

    Args:
        ort: onnxruntime.
        options: they are as before afterwards. A model of one node is opened with them.

    Returns:
        Their names; none where that model does not open.
    """
    from onnx import TensorProto, helper

    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    kept = {name: getattr(options, name, None) for name in ("enable_profiling", "optimized_model_filepath")}
    try:
        for name, none in (("enable_profiling", False), ("optimized_model_filepath", "")):
            if kept[name]:
                setattr(options, name, none)
        return list(ort.InferenceSession(model.SerializeToString(), options, providers=None).get_providers())
    except Exception:  # the session itself says what is wrong with them
        return []
    finally:
        for name, value_before in kept.items():
            if value_before:
                setattr(options, name, value_before)


def device_of(name: str, chosen: Sequence[Any], options_of_each: Sequence[dict[str, Any]] | None) -> int:
    """The number of the device that a provider is asked for; onnxruntime's default is 0."""
    for i, provider in enumerate(chosen):
        own = provider if isinstance(provider, str) else provider[0]
        if own == name:
            given = dict(options_of_each[i]) if options_of_each else {} if own is provider else dict(provider[1])
            text = str(given.get("device_id", 0))
            return int(text) if text.isdecimal() else 0
    return 0
