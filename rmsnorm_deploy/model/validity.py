"""What onnx's checker says against a model."""

from __future__ import annotations

from pathlib import Path

import onnx

from rmsnorm_deploy.errors import ModelError, first_line
from rmsnorm_deploy.model.atomic import write_new
from rmsnorm_deploy.model.graphs import AI_ONNX, forget_negative_sizes, graphs_of, nodes_of
from rmsnorm_deploy.model.load import load_model
from rmsnorm_deploy.model.skeleton import is_large, is_left_out, without_weights

_RUNTIME_OPS = frozenset({"SimplifiedLayerNormalization"})
"""onnxruntime has this one in ai.onnx, where onnx's checker takes it for a mistake."""
_UNCHECKED = "rmsnorm_deploy.unchecked"


def complaint(model: onnx.ModelProto | Path, *, full: bool = True) -> str:
    """What the checker says against a model, in one line; empty where it accepts the model.

    Args:
        model: a file, whose weight files are looked at too; or a model in memory, whose types and shapes are.
        full: look at types and shapes of a model in memory.
    """
    try:
        if isinstance(model, onnx.ModelProto):
            copy = _without_files(model)
            forget_negative_sizes(copy)
            onnx.checker.check_model(copy, full_check=full)
        elif _is_utf8(model):
            onnx.checker.check_model(model)
        else:  # the checker takes no such path
            onnx.checker.check_model(_without_files(onnx.load(model, load_external_data=False)))
    except Exception as error:  # protobuf, UTF-8 and checker errors share no base
        return first_line(error)
    if isinstance(model, onnx.ModelProto) and not _names_are_text(model):
        return "a name in it is not valid UTF-8"
    return ""


def _is_utf8(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeError:
        return False
    return True


def _without_files(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose weights are inputs: the checker looks for the file of external data."""
    copy = without_weights(model, lambda t: is_large(t) or t.data_location == onnx.TensorProto.EXTERNAL)
    inputs = {value.name for value in copy.graph.input}
    kept = []
    for tensor in copy.graph.initializer:
        if not is_left_out(tensor):
            kept.append(tensor)
        elif tensor.name not in inputs:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            copy.graph.input.append(value)
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept)
    return copy


def _names_are_text(model: onnx.ModelProto) -> bool:
    try:
        for node in model.graph.node:
            # protobuf hands a name that is not UTF-8 out as bytes
            "".join([node.name, node.op_type, node.domain, node.doc_string, *node.input, *node.output])
            "".join(a.name for a in node.attribute)
    except (TypeError, UnicodeError):
        return False
    return True


def check_written(file: Path, origin: Path | None) -> None:
    """Refuse a model file that does not load, or of which the checker says what it does not say of the original.

    Args:
        file: the model that was written.
        origin: the file that it was made from.

    Raises:
        ModelError: with what the checker says.
    """
    load_model(file)
    found = complaint(file) and _complaint_about_the_rest(file)
    if found and (origin is None or not _has_it_too(origin, file, found)):
        raise ModelError(
            f"the result would not be a valid model: {found}",
            "Please report this with the original model."
            if origin is not None
            else "If the original has the same fault, pass source=<its path> to save it nevertheless.",
        )


def _has_it_too(origin: Path, file: Path, found: str) -> bool:
    """Whether what the checker says of a file is what it says of the original."""
    if complaint(origin) == found:
        return True
    models = [_accepted_elsewhere(path) for path in (file, origin)]
    # The checker looks at functions from IR version 8 on, which the norms' own functions need.
    models[1].ir_version = max(model.ir_version for model in models)
    ours, theirs = (complaint(model, full=False) for model in models)
    return bool(ours) and ours == theirs


def _complaint_about_the_rest(file: Path) -> str:
    """The complaint about a file without what runtimes accept and the checker does not."""
    copy = file.with_name(f"{file.name}.check")
    try:
        write_new(copy, _accepted_elsewhere(file).SerializeToString())
        return complaint(copy)
    finally:
        copy.unlink(missing_ok=True)


def _accepted_elsewhere(file: Path) -> onnx.ModelProto:
    """The model in a file, with what runtimes accept and the checker does not moved out of the checker's sight.

    These are operators that only onnxruntime knows, and inputs and outputs without a type or shape: of a value of
    unknown rank, an exporter has nothing to say.
    """
    proto = onnx.ModelProto()
    proto.ParseFromString(file.read_bytes())
    for node in nodes_of(proto):
        if node.op_type in _RUNTIME_OPS and node.domain in AI_ONNX:
            node.domain = _UNCHECKED
    proto.opset_import.add(domain=_UNCHECKED, version=1)
    for function in proto.functions:
        function.opset_import.add(domain=_UNCHECKED, version=1)
    return with_stated_types(proto)


def with_stated_types(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto``, whose inputs and outputs without a type or shape have got some, for the checker's eyes only."""
    for graph in graphs_of(proto):
        for value in (*graph.input, *graph.output):
            if value.type.WhichOneof("value") in (None, "tensor_type"):
                tensor = value.type.tensor_type
                tensor.shape.SetInParent()
                tensor.elem_type = tensor.elem_type or onnx.TensorProto.FLOAT
    return proto
