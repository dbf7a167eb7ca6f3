"""The fuser as a pass of onnx_ir."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from rmsnorm_deploy.fusing.apply import apply
from rmsnorm_deploy.fusing.forms import DEFAULT, Form, form_named
from rmsnorm_deploy.fusing.guard import model_errors
from rmsnorm_deploy.fusing.neighbours import neighbours_named
from rmsnorm_deploy.fusing.prepare import prepared
from rmsnorm_deploy.fusing.report import FusionReport
from rmsnorm_deploy.recognise.neighbours import Neighbour


class RmsNormFusionPass(ir.passes.InPlacePass):
    """:func:`rmsnorm_deploy.fuse` for a sequence of ``onnx_ir`` passes: it changes the model that it is given.

    Args:
        form: what the norms are written as.
        also: what else goes into their operators: see :func:`rmsnorm_deploy.fuse`.

    Attributes:
        form: as given.
        also: as given, as a set.
        report: of the last run; None before the first.

    Raises:
        UsageError: there is no such form or neighbour. A run raises what :func:`rmsnorm_deploy.fuse` raises.
    """

    def __init__(self, form: Form | str = DEFAULT, *, also: Iterable[Neighbour | str] = ()) -> None:
        super().__init__()
        self.form = form_named(form)
        self.also = neighbours_named(also)
        self.report: FusionReport | None = None

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Fuse ``model`` in place.

        Raises:
            ModelError: the graph contradicts itself, or its ai.onnx opset is older than 11.
        """
        with model_errors(model):
            plan = prepared(model, self.form, also=self.also)
            self.report = plan.report(apply(plan).fused)
        if plan.model is not model:
            # the version converter has made another model
            model.graph, model.ir_version = plan.model.graph, plan.model.ir_version
            model.metadata_props.clear()
            model.metadata_props.update(plan.model.metadata_props)
        return ir.passes.PassResult(model, modified=bool(self.report.fused or self.report.repaired))
