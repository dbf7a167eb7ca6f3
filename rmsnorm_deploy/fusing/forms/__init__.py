"""The forms of output, one file each: a new file here is a new form, everywhere that forms can be named.

The file's name is the form's name, and its object ``FORM`` is an :class:`rmsnorm_deploy.fusing.form.OutputForm`.
"""

from __future__ import annotations

import enum
import importlib
import pkgutil
from typing import TYPE_CHECKING

from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.fusing.form import OutputForm

DEFAULT = "plugin"
"""The form of a new output: it expresses every norm, as `standard` does; the others refuse some."""

NAMES = tuple(sorted((m.name for m in pkgutil.iter_modules(__path__)), key=lambda name: (name != DEFAULT, name)))
"""Every form, the default one first."""

if TYPE_CHECKING:

    class Form(str, enum.Enum):
        """What fused norms are written as."""

        PLUGIN = "plugin"
        """Nodes of our own domain with a function body: fast with our library, correct without it."""
        ONNX = "onnx"
        """RMSNormalization of ai.onnx opset 23."""
        ORT = "ort"
        """SimplifiedLayerNormalization and SkipSimplifiedLayerNormalization, which onnxruntime alone knows."""
        STANDARD = "standard"
        """One spelling of standard operators, for every runtime."""

else:
    Form = enum.Enum("Form", {name.upper(): name for name in NAMES}, type=str, module=__name__)
    Form.__doc__ = "What fused norms are written as: one member for each file in rmsnorm_deploy/fusing/forms."

STANDARD = Form("standard")
"""The form in which our nodes are written when they have to go; it expresses every norm."""


def form_named(name: Form | str) -> Form:
    """The form of this name.

    Raises:
        UsageError: there is none.
    """
    try:
        return Form(name)
    except ValueError:
        raise UsageError(f"there is no form '{name}'", f"Forms are: {', '.join(NAMES)}.") from None


def writer_of(form: Form) -> OutputForm:
    """The object that writes norms in ``form``."""
    writer: OutputForm = importlib.import_module(f"{__name__}.{form.value}").FORM
    return writer
