"""Norms as schedules get them."""

from rmsnorm_deploy.op import NormParameters, Op
from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.tvm.schedules.norm import Norm
from tests.support.contract import F32


def norm_of(size, dtype=F32, op=Op.RMS_NORM, scale_dtype=None, **other):
    parameters = {"epsilon": 1e-6, "stash_type": F32, "scale_type": dtype, **other}
    return Norm(NormParameters(op, dtype, **parameters), float_type(scale_dtype or dtype).name, size)
