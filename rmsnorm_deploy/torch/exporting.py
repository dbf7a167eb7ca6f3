"""From a module to a fused file in one call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.fusing.forms import DEFAULT, Form, form_named
from rmsnorm_deploy.fusing.fuse import fuse
from rmsnorm_deploy.fusing.neighbours import ALL
from rmsnorm_deploy.fusing.report import FusionReport
from rmsnorm_deploy.fusing.unfuse import unfuse
from rmsnorm_deploy.model.files import check_output, output_path
from rmsnorm_deploy.model.save import save
from rmsnorm_deploy.torch.translating import translations


def export(
    module: Any,
    args: Sequence[Any] = (),
    path: str | os.PathLike[str] | None = None,
    *,
    form: Form | str = DEFAULT,
    overwrite: bool = False,
    custom_translation_table: Mapping[Any, Callable[..., Any]] | None = None,
    **options: Any,
) -> tuple[ir.Model, FusionReport]:
    """Export ``module`` with ``torch.onnx.export(..., dynamo=True)``, with every norm in it as one operator.

    ``torch.nn.RMSNorm``, ``torch.nn.functional.rms_norm`` and the operators of :mod:`rmsnorm_deploy.torch` come out
    directly, whatever the release of PyTorch makes of them; norms that the module writes out are recognised, and so are
    additions in front of norms and the gates around them.

    Args:
        module: a ``torch.nn.Module``, or a ``torch.export.ExportedProgram``.
        args: positional arguments for it.
        path: where to write the file; None writes none.
        form: what the norms are written as: a :class:`rmsnorm_deploy.Form` or its name.
        overwrite: replace an existing output.
        custom_translation_table: more translations for PyTorch's exporter, which go before ours.
        **options: for ``torch.onnx.export``, such as ``kwargs``, ``dynamic_shapes``, ``input_names`` and
            ``opset_version``.

    Returns:
        The fused model, and the report.

    Raises:
        UsageError: the output exists or cannot be written, there is no such form, or ``options`` ask for the exporter
            without dynamo or for a file of its own.
        ModelError: the exported model is not valid.
    """
    if "f" in options:
        raise UsageError("export takes no 'f'", "Give 'path' instead.")
    if not options.pop("dynamo", True):
        raise UsageError("PyTorch's exporter without dynamo takes no translations", "Leave out dynamo=False.")
    chosen = form_named(form)
    if path is not None:
        check_output(output_path(path), source=None, overwrite=overwrite)  # before any work
    table = {**translations(), **(custom_translation_table or {})}
    options = {"verbose": False, **options}
    program = torch.onnx.export(module, tuple(args), dynamo=True, custom_translation_table=table, **options)
    # our nodes are written out and found again, so that what stands around them is looked at as well
    plain, _ = unfuse(program.model)
    fused, report = fuse(plain, form=chosen, also=ALL)
    if path is not None:
        save(fused, path, overwrite=overwrite)
    return fused, report
