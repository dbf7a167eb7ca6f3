"""The operators: what they are, what they mean, how they are written. Everything else reads them from here."""

from rmsnorm_deploy.op.definition import (
    ALL_FEATURES,
    DOMAIN,
    MIN_IR_VERSION,
    MIN_OPSET,
    VERSION,
    NormParameters,
    Op,
    as_float32,
    attribute_names,
    function_body,
    min_opset,
    register_schemas,
    schemas,
)
from rmsnorm_deploy.op.dtypes import FLOAT_TYPES, SIXTEEN_BIT

__all__ = [
    "ALL_FEATURES",
    "DOMAIN",
    "FLOAT_TYPES",
    "MIN_IR_VERSION",
    "MIN_OPSET",
    "SIXTEEN_BIT",
    "VERSION",
    "NormParameters",
    "Op",
    "as_float32",
    "attribute_names",
    "function_body",
    "min_opset",
    "register_schemas",
    "schemas",
]
