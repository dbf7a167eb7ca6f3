"""A thread and a child process for each device, near or far: jobs in, outcomes out.

The threads only wait; everything that can crash or hang is done by the child process.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

from rmsnorm_deploy.errors import MissingEnvironment
from rmsnorm_deploy.tvm.tuning.devices import Fleet, reserve
from rmsnorm_deploy.tvm.tuning.measure import Job, Outcome, build, measure
from rmsnorm_deploy.tvm.tuning.worker import Worker, WorkerLost


class Runner:
    """A thread and a child process for each device; jobs in, outcomes out."""

    def __init__(self, fleet: Fleet | None, count: int, limit: float, patience: float) -> None:
        self.fleet, self.count, self.limit, self.patience = fleet, count, limit, patience
        self._jobs: queue.SimpleQueue[tuple[int, Job] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[tuple[int, Outcome | BaseException]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._held = 0
        self._last_held = time.monotonic()
        self._workers = [Worker() for _ in range(count)]
        self._threads = [threading.Thread(target=self._serve, args=(w,), daemon=True) for w in self._workers]
        for thread in self._threads:
            thread.start()

    def put(self, number: int, job: Job) -> None:
        """Give a job to the next device that is free."""
        self._jobs.put((number, job))

    def get(self) -> tuple[int, Outcome]:
        """The number of a job that is done, and what came of it."""
        number, outcome = self._outcomes.get()
        if isinstance(outcome, BaseException):
            raise outcome
        return number, outcome

    def stop(self) -> None:
        """End every child and thread, whatever they are doing."""
        self._stopped.set()
        for worker in self._workers:
            worker.stop()
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self, worker: Worker) -> None:
        while (given := self._jobs.get()) is not None and not self._stopped.is_set():
            number, job = given
            try:
                self._outcomes.put((number, self._near(worker, job) if self.fleet is None else self._far(worker, job)))
            except BaseException as error:  # the main thread's business
                self._outcomes.put((number, error))

    def _near(self, worker: Worker, job: Job) -> Outcome:
        try:
            built = worker.call(build, job, seconds=self.limit)
            return _as_outcome(built if built.unfit else worker.call(measure, job, False, seconds=self.limit))
        except WorkerLost as error:
            return Outcome(unfit=str(error))

    def _far(self, worker: Worker, job: Job) -> Outcome:
        try:
            built = _as_outcome(worker.call(build, job, seconds=self.limit))
        except WorkerLost as error:
            return Outcome(unfit=str(error))
        if built.unfit:
            return built
        self._wait_for_device(worker)
        try:
            # the device ends the session by itself; a device that is silent is ended here
            return _as_outcome(worker.call(measure, job, True, seconds=self.limit + 10))
        except WorkerLost as error:
            return Outcome(lost=str(error))
        finally:
            with self._lock:
                self._held -= 1
                self._last_held = time.monotonic()

    def _wait_for_device(self, worker: Worker) -> None:
        assert self.fleet is not None
        while True:
            try:
                got = worker.call(reserve, self.fleet, self.limit, 1.0, seconds=15)
            except WorkerLost:  # the tracker does not answer
                got = False
            with self._lock:
                if got:
                    self._held += 1
                    return
                waited = 0.0 if self._held else time.monotonic() - self._last_held
            if self._stopped.is_set() or waited > self.patience:
                raise MissingEnvironment(
                    f"the tracker at {self.fleet} had no device with the key '{self.fleet.key}' for {waited:.0f} s",
                    "The log has what was measured: start the devices again, and run the same command.",
                )


def _as_outcome(value: Any) -> Outcome:
    assert isinstance(value, Outcome)
    return value
