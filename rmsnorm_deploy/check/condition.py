"""In which condition the norms of ours are that a model holds."""

from __future__ import annotations

import dataclasses

import onnx

from rmsnorm_deploy.errors import RmsNormDeployError
from rmsnorm_deploy.fusing.mending import NAMES, mend
from rmsnorm_deploy.model.load import to_ir
from rmsnorm_deploy.op.traces import about_inlined


@dataclasses.dataclass(frozen=True)
class Condition:
    """What is wrong with the norms of ours in a model; nothing for most.

    Attributes:
        repairs: what :func:`rmsnorm_deploy.fuse` would repair, such as "bodies of 9 norms".
        warnings: what it could not, and norms that were lost, one sentence each, with what to do.
    """

    repairs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """All of it, one sentence each."""
        said = [f"a tool has damaged fused norms, and 'rmsnorm-deploy fuse' repairs {r}" for r in self.repairs]
        return [*said, *self.warnings]


def condition_of(proto: onnx.ModelProto) -> Condition:
    """Look at the norms of ours in ``proto``, which is not changed; its weights are not read."""
    try:
        mended = mend(to_ir(proto))
    except RmsNormDeployError as error:
        return Condition(warnings=(str(error),))
    lost = (about_inlined(mended.inlined),) if mended.inlined else ()
    return Condition(tuple(r for r in mended.repaired if r != NAMES), (*mended.warnings, *lost))
