"""The log of tuning: what was measured, for what target, and the schedule that came out for each norm."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rmsnorm_deploy.errors import ModelError, UsageError
from rmsnorm_deploy.model import atomic
from rmsnorm_deploy.model.files import StrPath, read_text
from rmsnorm_deploy.op import NormParameters
from rmsnorm_deploy.op.dtypes import TYPES
from rmsnorm_deploy.tvm.schedules.norm import Norm, from_text, to_text
from rmsnorm_deploy.tvm.schedules.registry import schedules_for
from rmsnorm_deploy.tvm.targets.machines import machine_of
from rmsnorm_deploy.tvm.targets.registry import CPU
from rmsnorm_deploy.tvm.targets.resolve import triple_of

SCHEMA_VERSION = 2

Kind = TypeVar("Kind")

Values = dict[str, int]
"""A schedule: its parameters, by name."""


@dataclasses.dataclass
class Measured:
    """One schedule beside the default one.

    Attributes:
        schedule: what was measured.
        discarded: why it is out of the question; empty where it is not. Then there are no figures.
        microseconds: of one call, for each row count: the median of the turns.
        default_microseconds: of the default schedule, in the same turns on the same device.
        speedups: one for each turn: how many times as fast as the default, the geometric mean over row counts.
        confirmed: measured again as the best one, in turns of their own; figures are those of both.
    """

    schedule: Values
    discarded: str = ""
    microseconds: dict[str, float] = dataclasses.field(default_factory=dict)
    default_microseconds: dict[str, float] = dataclasses.field(default_factory=dict)
    speedups: list[float] = dataclasses.field(default_factory=list)
    confirmed: bool = False


@dataclasses.dataclass
class Entry:
    """One norm.

    Attributes:
        norm: as a kernel sees it.
        default: the default schedule of the release that measured.
        state: ``searching`` (nothing is chosen yet), ``partial`` (chosen among some candidates) or ``complete``.
        schedule: the one to use; None while searching.
        speedup: of it, over the default.
        noise: how far the default, beside itself, was off from 1.
        candidates: what was measured or discarded, in order.
    """

    norm: Norm
    default: Values
    state: str = "searching"
    schedule: Values | None = None
    speedup: float = 1.0
    noise: float = 0.0
    candidates: list[Measured] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class TuningLog:
    """The file.

    Attributes:
        target: TVM's name of the target.
        machine: architecture of the CPU, such as ``aarch64``; empty for a GPU.
        cpu: LLVM's name of the CPU, or the architecture of a GPU.
        tvm: release of TVM.
        device: what measured: ``local``, for a GPU with its name, or the tracker's key of a fleet.
        threads: that TVM had there; 0 for a GPU, and for a fleet, whose devices have their own.
        rows: the row counts that were measured.
        entries: one for each norm.
    """

    target: str
    machine: str
    cpu: str
    tvm: str
    device: str
    threads: int
    rows: list[int]
    entries: list[Entry] = dataclasses.field(default_factory=list)

    @property
    def processor(self) -> str:
        """What it is for, in words."""
        return " ".join(word for word in (self.target, self.machine, self.cpu) if word)

    def entry(self, norm: Norm) -> Entry | None:
        """The entry of ``norm``."""
        return next((e for e in self.entries if e.norm == norm), None)

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        entries = [
            {"name": e.norm.name, "norm": _norm_to_dict(e.norm)}
            | {k: v for k, v in dataclasses.asdict(e).items() if k != "norm"}
            for e in self.entries
        ]
        head = {k: v for k, v in vars(self).items() if k != "entries"}
        return {"schema_version": SCHEMA_VERSION, **head, "norms": entries}

    def write(self, path: Path) -> None:
        """Write the file: whoever reads it finds the old or the new one, never half of it."""
        atomic.write(path, (json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n").encode())


def cpu_of(target: Any) -> str:
    """What distinguishes targets of one kind: the CPU, or the GPU's architecture."""
    attributes = target.attrs
    return str(attributes.get("mcpu") or attributes.get("arch") or "")


def cpu_machine_of(target: Any) -> str:
    """The architecture of the CPU, where it is the target: names such as ``generic`` are in use by several."""
    return machine_of(triple_of(target)) if str(target.kind.name) == CPU else ""


def read(path: StrPath) -> TuningLog:
    """The log at ``path``.

    Raises:
        ModelError: it cannot be read, or is not a log.
    """
    try:
        text = read_text(Path(path))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ModelError(f"the log {path} cannot be read: {why}", "'rmsnorm-deploy tune' writes one.") from error
    try:
        data = json.loads(text)
        version = data["schema_version"]
        if version == SCHEMA_VERSION:
            entries = [
                _typed(
                    Entry,
                    {k: v for k, v in e.items() if k != "name"}
                    | {
                        "norm": _norm_from_dict(e["norm"]),
                        "candidates": [_typed(Measured, m) for m in e["candidates"]],
                    },
                )
                for e in data["norms"]
            ]
            head = {k: v for k, v in data.items() if k not in ("schema_version", "norms")}
            return _typed(TuningLog, head | {"entries": entries})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} is not a log of tuning", "'rmsnorm-deploy tune' writes one.") from error
    raise ModelError(f"{path} has format {str(version)[:40]}, and this release reads {SCHEMA_VERSION}", "Tune again.")


class TunedSchedules:
    """The schedules of a log, as :mod:`rmsnorm_deploy.tvm.passes.pipeline` asks for them.

    Attributes:
        used: how many norms had one.
    """

    def __init__(self, path: StrPath, target: Any) -> None:
        """Read them.

        Args:
            path: of the log.
            target: the ``tvm.target.Target`` that is compiled for.

        Raises:
            UsageError: the log is for another target.
            ModelError: it cannot be read, is not a log, or has the schedules of another release.
        """
        log = read(path)
        check_target(log, path, target)
        schedules = schedules_for(target)
        self._schedules = {
            e.norm: schedule_of(e.schedule, type(schedules.default(e.norm)), path)
            for e in log.entries
            if e.schedule is not None
        }
        self.used = 0

    def __call__(self, norm: Norm) -> Any:
        """The schedule of ``norm``, or None where the log has none."""
        schedule = self._schedules.get(norm)
        self.used += schedule is not None
        return schedule


def check_target(log: TuningLog, path: StrPath, target: Any) -> None:
    """Refuse a log for another target.

    Raises:
        UsageError: with what to do about it.
    """
    here = TuningLog(str(target.kind.name), cpu_machine_of(target), cpu_of(target), "", "", 0, [])
    if (log.target, log.machine, log.cpu) == (here.target, here.machine, here.cpu):
        return
    triple = f" --mtriple {log.machine}-linux-gnu" if log.machine != here.machine and log.machine else ""
    cpu = f" {'--mcpu' if log.target == CPU else '--arch'} {log.cpu}" if log.cpu else ""
    raise UsageError(
        f"the log {path} is for {log.processor}, and this is {here.processor}",
        f"Add '--target {log.target}{triple}{cpu}', or use another log.",
    )


def schedule_of(values: Values, kind: type, path: StrPath) -> Any:
    """The schedule with these parameters.

    Raises:
        ModelError: ``kind`` has others, so that the log at ``path`` is from another release, or other values.
    """
    if {f.name for f in dataclasses.fields(kind)} != set(values) or not all(type(v) is int for v in values.values()):
        raise ModelError(f"the schedules in {path} are those of another release", "Tune again, with a new log.")
    try:
        return kind(**values)
    except ValueError as error:
        raise ModelError(f"in {path}, {error}", "Tune again, with a new log.") from error


def values_of(schedule: Any) -> Values:
    """The parameters of a schedule."""
    return dict(dataclasses.asdict(schedule))


def _norm_to_dict(norm: Norm) -> dict[str, Any]:
    return {**vars(norm), "parameters": json.loads(to_text(norm.parameters))}


def _norm_from_dict(values: dict[str, Any]) -> Norm:
    norm = _typed(Norm, {**values, "parameters": from_text(json.dumps(values["parameters"]))})
    if norm.scale_dtype not in {t.name for t in TYPES} or not (norm.size is None or 0 < norm.size < 2**63):
        raise ValueError(f"there is no such norm: {norm}")
    return norm


def _typed(kind: type[Kind], values: dict[str, Any]) -> Kind:
    """A dataclass of the log, from JSON that anybody may have written.

    Raises:
        TypeError: a value is missing, is not known, or is of another type.
    """
    made = kind(**values)
    for field in dataclasses.fields(made):  # type: ignore[arg-type]
        if not _FITS[str(field.type)](getattr(made, field.name)):
            raise TypeError(f"{kind.__name__}.{field.name} is not {field.type}")
    return made


def _is_int(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, str))  # of what is no number schedule_of() has a better sentence


def _are(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda values: isinstance(values, list) and all(map(fits, values))


def _have(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda values: isinstance(values, dict) and all(map(fits, values.values()))


_FITS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": _is_int,
    "int | None": lambda value: value is None or _is_int(value),
    "float": _is_number,
    "list[int]": _are(_is_int),
    "list[float]": _are(_is_number),
    "dict[str, float]": _have(_is_number),
    "Values": _have(_is_plain),
    "Values | None": lambda value: value is None or _have(_is_plain)(value),
    "Norm": lambda value: isinstance(value, Norm),
    "NormParameters": lambda value: isinstance(value, NormParameters),
    "list[Measured]": _are(lambda value: isinstance(value, Measured)),
    "list[Entry]": _are(lambda value: isinstance(value, Entry)),
}
"""By the annotation of a field: whether a value is what it says."""
