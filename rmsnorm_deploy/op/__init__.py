"""The operators: what they are, what they mean, how they are written. Everything else reads them from here."""

from rmsnorm_deploy.op.body import MIN_IR_VERSION, MIN_OPSET, function_body, min_opset
from rmsnorm_deploy.op.definition import (
    ALL_FEATURES,
    GATED_FIRST,
    GATED_LAST,
    GATED_NORMALISED,
    SIGMOID,
    SILU,
    NormParameters,
    Op,
    as_float32,
    attribute_names,
)
from rmsnorm_deploy.op.dtypes import FLOAT_TYPES, SIXTEEN_BIT
from rmsnorm_deploy.op.naming import is_ours, op_named
from rmsnorm_deploy.op.retyping import following
from rmsnorm_deploy.op.schema import register_schemas, schemas
from rmsnorm_deploy.op.versions import DOMAIN, VERSION, newest, version_of

__all__ = [
    "ALL_FEATURES",
    "DOMAIN",
    "FLOAT_TYPES",
    "GATED_FIRST",
    "GATED_LAST",
    "GATED_NORMALISED",
    "MIN_IR_VERSION",
    "MIN_OPSET",
    "SIGMOID",
    "SILU",
    "SIXTEEN_BIT",
    "VERSION",
    "NormParameters",
    "Op",
    "as_float32",
    "attribute_names",
    "following",
    "function_body",
    "is_ours",
    "min_opset",
    "newest",
    "op_named",
    "register_schemas",
    "schemas",
    "version_of",
]
