"""Reading a model file: what is wrong with it in one sentence, and never its weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from rmsnorm_deploy.errors import ModelError, first_line
from rmsnorm_deploy.model.external import external_reference, external_tensors, weight_file
from rmsnorm_deploy.model.files import StrPath
from rmsnorm_deploy.model.graphs import graphs_of
from rmsnorm_deploy.model.sound import require_sound

PROTOBUF_LIMIT = 2**31 - 1
"""No protobuf message is larger than this, whatever writes it."""

_MODEL_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
"""Field numbers of ModelProto and their wire types: what a top-level tag of an ONNX file may be."""

_KNOWN_STARTS = {
    b"\x89PNG": "a PNG picture",
    b"PK\x03\x04": "a ZIP archive (a PyTorch checkpoint or a wheel, perhaps)",
    b"\x1f\x8b": "a gzip archive",
    b"\x80\x02": "a Python pickle",
    b"\x80\x04": "a Python pickle",
    b"\x89HDF": "an HDF5 file",
    b"GGUF": "a GGUF file",
    b"\x7fELF": "a program or library",
    b"version https://git-lfs": "a Git LFS pointer, not the model itself",
}


def load_proto(path: StrPath) -> onnx.ModelProto:
    """Read and check the model file at ``path``. External data are checked to be there, not read.

    Args:
        path: an ONNX model in protobuf form.

    Raises:
        ModelError: the file is missing, not a readable ONNX model, or refers to weight files that are missing, too
            short, or outside its folder.
    """
    file = Path(path)
    model = _parse(file, _read(file))
    require_sound(model, str(file))
    folder = file.parent
    checked: dict[str, tuple[Path, int]] = {}
    for tensor in external_tensors(model):
        location, offset, length = external_reference(tensor)
        if location not in checked:
            found = weight_file(folder, location, tensor.name)
            checked[location] = found, found.stat().st_size
        found, size = checked[location]
        if offset + length > size:
            raise ModelError(
                f"the weight file {found} is too short: tensor '{tensor.name}' needs bytes {offset} to "
                f"{offset + length}, and it has {size}",
                "It was cut off or belongs to another export; copy or export it again.",
            )
    return model


def load_model(path: StrPath) -> ir.Model:
    """Read the model file at ``path`` as an ``onnx_ir.Model`` whose external data stay where they are.

    Args:
        path: an ONNX model in protobuf form.

    Raises:
        ModelError: as :func:`load_proto`.
    """
    return to_ir(load_proto(path), path)


def to_ir(proto: onnx.ModelProto, path: StrPath | None = None) -> ir.Model:
    """``proto`` as an ``onnx_ir.Model``; tensors are shared, external data stay where they are and are not read.

    Args:
        proto: the model.
        path: the file that it was read from, which external data are relative to; None where that is not known.

    Raises:
        ModelError: the graph contradicts itself.
    """
    if path is None:
        require_sound(proto, "the model")
    try:
        model = _understood(proto)
    except Exception as error:  # onnx_ir raises many types on graphs that contradict themselves
        where = "the graph" if path is None else f"the graph in {path}"
        raise ModelError(f"{where} cannot be understood: {first_line(error)}", _TRY_CHECKER) from error
    if path is None or next(iter(external_tensors(proto)), None) is None:
        return model
    # an absolute folder: with an empty one onnx_ir switches its own containment checks off
    ir.external_data.set_base_dir(model.graph, Path(path).parent.absolute())
    return model


def _understood(proto: onnx.ModelProto) -> ir.Model:
    """``proto`` as a model, without the types that onnx_ir does not know: maps, as classifiers give, and no types."""
    try:
        return ir.from_proto(proto)
    except Exception:  # nearly every model has none, so they are looked for only now
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        unknown = [v for graph in graphs_of(copy) for v in _values(graph) if _is_unknown(v.type)]
        if not unknown:
            raise
    for value in unknown:
        value.ClearField("type")
    return ir.from_proto(copy)


def _values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from graph.input
    yield from graph.output
    yield from graph.value_info


def _is_unknown(kind: onnx.TypeProto) -> bool:
    while (name := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
        kind = getattr(kind, str(name)).elem_type
    if name in ("tensor_type", "sparse_tensor_type"):
        return getattr(kind, str(name)).elem_type not in _TYPES
    return name in ("map_type", "opaque_type")


_TYPES = frozenset(int(t) for t in ir.DataType)
_TRY_CHECKER = "See what onnx.checker.check_model(path) says; export the model again."


def _read(file: Path) -> bytes:
    try:
        return _content(file)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name, or what no file system can encode
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(f"{str(file)!r} cannot be read: {why}", "Check its name and its permissions.") from error


def _content(file: Path) -> bytes:
    if file.is_dir():
        inside = sorted(p.name for p in file.glob("*.onnx"))
        hint = f"Name the file in it: '{file / inside[0]}'." if inside else "Name an .onnx file."
        raise ModelError(f"{file} is a folder, not a model file", hint)
    if not file.exists():
        what = "a link to nothing" if file.is_symlink() else "not there"
        from_stdin = "Name a file: of the commands, fuse, unfuse and convert read a model from stdin."
        raise ModelError(f"the model {file} is {what}", from_stdin if str(file) == "-" else "Check the path.")
    if not file.is_file():
        raise ModelError(f"{file} is not a regular file", "Name an .onnx file.")
    size = file.stat().st_size
    if size > PROTOBUF_LIMIT:
        raise ModelError(
            f"{file} has {size / 2**30:.1f} GiB in one file, and no ONNX file can be larger than 2 GiB",
            "Export it with external data: onnx.save(..., save_as_external_data=True).",
        )
    return file.read_bytes()


def _parse(file: Path, data: bytes) -> onnx.ModelProto:
    if not data:
        raise ModelError(f"{file} is empty", "Export or download the model again.")
    if data[4:8] == b"ORTM":  # a FlatBuffers file has its identifier behind the offset of its root
        raise ModelError(
            f"{file} is a file in onnxruntime's ORT format, not an ONNX model",
            "Name the .onnx file that it was made of; rmsnorm_deploy.session runs both.",
        )
    for start, what in _KNOWN_STARTS.items():
        if data.startswith(start):
            hint = "Run 'git lfs pull'." if "LFS" in what else "Name the .onnx file that the exporter wrote."
            raise ModelError(f"{file} is {what}, not an ONNX model", hint)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError, which has no type stubs
        if _is_cut_off(data):
            raise ModelError(
                f"{file} is cut off: it ends after {len(data)} bytes, in the middle of the model",
                "The download or copy was not complete; repeat it.",
            ) from error
        raise ModelError(
            f"{file} is not an ONNX model (not readable as protobuf)", "Name the .onnx file that the exporter wrote."
        ) from error
    # protobuf reads some files that are something else "successfully": every ONNX model has these
    if not model.HasField("graph"):
        raise ModelError(f"{file} has no graph, so it is not an ONNX model", "Export or download the model again.")
    if not model.opset_import:
        raise ModelError(f"{file} does not say which opset it uses", "Export the model again with a current exporter.")
    return model


def _is_cut_off(data: bytes) -> bool:
    """Whether ``data`` begins as an ONNX model does and ends inside one of its fields."""
    position, fields = 0, 0
    while position < len(data):
        tag, position = _varint(data, position)
        if tag is None:
            return fields > 0
        if _MODEL_FIELDS.get(tag >> 3) != tag & 7:
            return False
        value, position = _varint(data, position)
        if value is None:
            return fields > 0
        if tag & 7 == 2:
            position += value
        fields += 1
    return position > len(data) and fields > 1


def _varint(data: bytes, position: int) -> tuple[int | None, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    return None, position
