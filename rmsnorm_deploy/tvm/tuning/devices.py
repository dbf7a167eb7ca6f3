"""What measures: this machine, or the devices that TVM's RPC tracker lends."""

from __future__ import annotations

import dataclasses
import socket
import time
from typing import Any

from tvm import rpc

from rmsnorm_deploy.errors import MissingEnvironment, UsageError
from rmsnorm_deploy.tvm.artefact import cubin, linking
from rmsnorm_deploy.tvm.targets.device import device_for
from rmsnorm_deploy.tvm.targets.machines import machine_of, this_machine
from rmsnorm_deploy.tvm.targets.registry import CPU, FLEET_TARGETS, GPUS
from rmsnorm_deploy.tvm.targets.resolve import triple_of
from rmsnorm_deploy.tvm.tuning.worker import Worker, WorkerLost

LOCAL = "local"
"""What a log calls this machine."""


@dataclasses.dataclass(frozen=True)
class Fleet:
    """Devices behind a tracker.

    Attributes:
        host: of the tracker.
        port: of the tracker.
        key: under which the devices have registered.
    """

    host: str
    port: int
    key: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def fleet_of(tracker: str | None, key: str | None) -> Fleet | None:
    """The fleet of ``tracker``, which is ``HOST:PORT``; None for this machine.

    Raises:
        UsageError: only one of the two is given, or the tracker is something else.
    """
    if tracker is None and key is None:
        return None
    if tracker is None or not key:
        raise UsageError("a fleet has a tracker and a key, and one of them is missing", "Give --tracker and --key.")
    host, _, port = tracker.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"the tracker '{tracker}' is not HOST:PORT", "For instance 127.0.0.1:9190.")
    return Fleet(host.strip("[]"), int(port), key)


def here(target: Any, arch: str | None) -> tuple[str, str | None]:
    """What measures on this machine, and the GPU's architecture where the target has any.

    Raises:
        UsageError: it cannot run the target, or has another GPU than ``arch``.
        MissingEnvironment: there is no such GPU, no runtime for it, or no nvcc.
    """
    kind, machine = str(target.kind.name), machine_of(triple_of(target))
    if machine != this_machine():
        raise UsageError(
            f"this machine is {this_machine()}, and cannot measure what is compiled for {machine}",
            "Give --tracker and --key of a fleet of such machines.",
        )
    if kind == CPU:
        return LOCAL, None
    gpu, device = GPUS[kind], device_for(kind)
    name = f"{LOCAL} {device.device_name}"
    if gpu.kernels_beside:
        cubin.find_nvcc()
    if gpu.architecture_of is None:
        return name, arch
    found = gpu.architecture_of(device)
    if arch not in (None, found):
        raise UsageError(
            f"the GPU here is {found}, and not {arch}", "Leave --arch out, or use a machine with the other GPU."
        )
    return name, found


def check_fleet_target(target: Any, arch: str | None) -> None:
    """Refuse what the devices of a tracker cannot measure.

    Raises:
        UsageError: it is the target, or the GPU is not named.
        MissingEnvironment: there is no C++ compiler to link for it.
    """
    kind = str(target.kind.name)
    if kind not in FLEET_TARGETS:
        raise UsageError(
            f"target '{kind}' cannot be measured on a fleet",
            f"Tune without --tracker on a machine with the GPU; fleets are for {', '.join(FLEET_TARGETS)}.",
        )
    if arch is None and kind in GPUS and GPUS[kind].architectures:
        raise UsageError("the devices' GPU is not named", "Add --arch.")
    linking.compiler(triple_of(target))


def count(fleet: Fleet) -> int:
    """How many devices have the fleet's key, at least one.

    Raises:
        MissingEnvironment: there is no tracker, or none of its devices has the key.
    """
    worker = Worker()
    try:
        found, keys = worker.call(registered, fleet, seconds=30)
    except (WorkerLost, OSError, RuntimeError) as error:
        raise MissingEnvironment(
            f"no RPC tracker answers at {fleet}",
            "Start one there: 'python -m tvm.exec.rpc_tracker --host 0.0.0.0 "
            f"--port {fleet.port} --port-end {fleet.port + 1}'.",
        ) from error
    finally:
        worker.stop()
    if not found:
        there = f"It has: {', '.join(keys)}." if keys else "It has no devices at all."
        raise MissingEnvironment(
            f"the tracker at {fleet} has no device with the key '{fleet.key}'",
            f"{there} On a device: 'python -m tvm.exec.rpc_server --tracker {fleet} --key {fleet.key}'.",
        )
    return int(found)


# -- in the child process

_session: Any = None
"""In the child process: the device that :func:`reserve` got, until :func:`reserved` hands it out."""


def registered(fleet: Fleet) -> tuple[int, list[str]]:
    """How many devices have the fleet's key, and the keys that there are.

    Raises:
        OSError: there is no tracker.
        RuntimeError: something else answers there.
    """
    socket.create_connection((fleet.host, fleet.port), timeout=5).close()  # TVM would try for a minute
    tracker = rpc.connect_tracker(fleet.host, fleet.port)
    keys = [str(server["key"]).partition(":")[2] for server in tracker.summary()["server_info"]]
    tracker.close()
    return keys.count(fleet.key), sorted(set(keys))


def reserve(fleet: Fleet, session_seconds: float, wait: float) -> bool:
    """Take a free device for the next measurement.

    Args:
        fleet: whose device.
        session_seconds: the device ends the session after that time.
        wait: so many seconds at most.

    Returns:
        Whether there was one.
    """
    global _session
    _session = None
    end = time.monotonic() + wait
    while True:
        try:
            socket.create_connection((fleet.host, fleet.port), timeout=1).close()
            tracker = rpc.connect_tracker(fleet.host, fleet.port)
            try:
                # a request waits without limit: only where it will be answered
                if tracker.summary()["queue_info"].get(fleet.key, {}).get("free", 0):
                    _session = tracker.request(fleet.key, session_timeout=session_seconds, max_retry=1)
                    return True
            finally:
                tracker.close()
        except (OSError, RuntimeError):
            pass  # the tracker starts again, or the device has just died
        if time.monotonic() > end:
            return False
        time.sleep(0.1)


def reserved() -> Any:
    """The session on the device that :func:`reserve` got, once; None where it has been handed out."""
    global _session
    session, _session = _session, None
    return session
