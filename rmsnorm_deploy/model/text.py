"""Whether the names and texts of a model are text: protobuf reads a file whose strings are not UTF-8 without a word."""

from __future__ import annotations

from typing import Any

from onnx import ModelProto

from rmsnorm_deploy.errors import ModelError

_STRING, _MESSAGE = 9, 11  # FieldDescriptor's numbers of types


def require_text(model: ModelProto, what: str) -> None:
    """Refuse a model with a string that is not UTF-8: no name of it could be told.

    Args:
        model: in memory.
        what: the model, for the message.

    Raises:
        ModelError: with the string and where it is.
    """
    found = _not_text(model)
    if found:
        raise ModelError(
            f"{what} is not a valid model: {found}, is not valid UTF-8",
            "It is damaged, or whoever wrote it did not encode its names; download or export it again.",
        )


def _not_text(message: Any) -> str:
    """The first string that is not UTF-8, with where it is; empty where all are text."""
    try:
        fields = message.ListFields()
    except UnicodeError:  # older releases of protobuf raise where newer ones hand out bytes
        return f"a field of a {message.DESCRIPTOR.name}"
    for field, value in fields:
        if field.type == _STRING:
            for text in value if field.is_repeated else (value,):
                if isinstance(text, bytes):
                    return f"{text!r}, a {field.name} of a {message.DESCRIPTOR.name}"
        elif field.type == _MESSAGE:
            for inner in value if field.is_repeated else (value,):
                found = _not_text(inner)
                if found:
                    return found
    return ""
