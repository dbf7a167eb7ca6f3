"""A tracker and devices of TVM's RPC on the loopback, for tests; everything ends with the block."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import psutil


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
    return found


class LocalFleet:
    def __init__(self):
        self.port = free_port()
        self.processes = []

    def __enter__(self):
        self._start("rpc_tracker", self.port)
        wait_until(self._answers)
        return self

    def __exit__(self, *_):
        for process in self.processes:
            self.kill(process)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def add(self, key, count=1):
        """Devices that have registered."""
        made = [self._start("rpc_server", free_port(), "--tracker", self.address, "--key", key) for _ in range(count)]
        wait_until(lambda: self._registered(key) >= count)
        return made

    @staticmethod
    def kill(process):
        """The server with the session that it serves, as if its plug were pulled."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    @staticmethod
    def serving(process):
        """The process of the session that a device has at the moment, or None."""
        with contextlib.suppress(psutil.NoSuchProcess):
            sessions = [q for p in psutil.Process(process.pid).children() for q in p.children()]
            sessions += [p for p in psutil.Process(process.pid).children()[1:]]
            return next(iter(sessions), None)
        return None

    def _start(self, module, port, *arguments):
        command = [sys.executable, "-m", f"tvm.exec.{module}", "--silent", "--host", "127.0.0.1"]
        process = subprocess.Popen(
            [*command, "--port", str(port), "--port-end", str(port + 1), *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def _answers(self):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return True
        return False

    def _registered(self, key):
        from tvm import rpc

        tracker = rpc.connect_tracker("127.0.0.1", self.port)
        try:
            return tracker.summary()["queue_info"].get(key, {}).get("free", 0)
        finally:
            tracker.close()
