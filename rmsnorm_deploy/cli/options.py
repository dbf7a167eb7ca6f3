"""Options that several commands share, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rmsnorm_deploy.fusing.forms import NAMES
from rmsnorm_deploy.fusing.neighbours import IN_WORDS
from rmsnorm_deploy.tvm.targets.registry import TARGETS_IN_WORDS

JsonFlag = Annotated[bool, typer.Option("--json", help="The result as JSON on stdout, and nothing else there.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing OUT.")]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="keep|copy|embed",
        help="Of weights in other files: use IN's, copy them beside OUT, or put them inside. "
        "[default: keep beside IN, copy elsewhere]",
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shapes", metavar="NAME:1,8,64", help="Shape of a generated input; may be repeated."),
]
Inputs = Annotated[Path | None, typer.Option("--inputs", metavar="FILE.npz", help="Real inputs, by name.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the input generator.")]
Threads = Annotated[int, typer.Option("--threads", min=0, help="Within an operator; 0 is onnxruntime's choice.")]

FormOption = Annotated[str, typer.Option("--form", metavar="FORM", help=f"How norms are written: {', '.join(NAMES)}.")]
AlsoOption = Annotated[
    list[str] | None,
    typer.Option("--also", metavar="NAME", help=f"What else goes into the operators: {IN_WORDS}; may be repeated."),
]
OldFormOption = Annotated[str | None, typer.Option("--op", metavar="FORM", hidden=True)]
"""What ``--form`` was called before."""

Target = Annotated[str, typer.Option("--target", metavar="TARGET", help=f"{TARGETS_IN_WORDS}.")]
Mcpu = Annotated[
    str | None, typer.Option("--mcpu", metavar="CPU", help="LLVM's name of the CPU; this machine's by default.")
]
Mtriple = Annotated[
    str | None,
    typer.Option("--mtriple", metavar="TRIPLE", help="Of a machine of another architecture: aarch64-linux-gnu."),
]


def is_there(path: Path) -> bool:
    """Whether there is a file of this name; False for a name that no file can have."""
    try:
        return path.exists()
    except OSError:
        return False


def load_inputs(path: Path | None, model: Path) -> Any:
    """The arrays of a file for the inputs of ``model``; None without a file."""
    if path is None:
        return None
    from rmsnorm_deploy.model.load import load_proto
    from rmsnorm_deploy.run.inputs import load_inputs

    return load_inputs(path, load_proto(model))


def shapes_of(texts: list[str] | None) -> Any:
    """Shapes by input from what ``--shapes`` got; None without."""
    from rmsnorm_deploy.run.inputs import parse_shapes

    return parse_shapes(texts) if texts else None
