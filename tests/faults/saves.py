"""Saves that go wrong: killed, without space, two at once, or with an input that changes meanwhile.

Each campaign yields a sentence for everything that is not as promised: the output is absent, wholly old or wholly new;
an error has the status that docs/reference/command-line.md gives it and one sentence; the input is what it was; what a
dead run left is removed by the next.
"""

import contextlib
import io
import os
import resource
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rmsnorm_deploy.cli.app import main
from tests.support.changes import at_change, die, listing, outcome, start

OUTPUT = "f.onnx"
SOME = 4 * 4 * 256 * 40
"""Bytes of weights outside, in the small case."""


def warm(folder):
    """Have everything imported that a run imports: children then start at once."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert fusing(make(folder / "warm", 1), folder / "warm" / OUTPUT)() == 0


def make(folder, value, outside=0):
    """A model with one norm in a new folder; its path. All of its weights are ``value``.

    Args:
        folder: where.
        value: of the weights.
        outside: the bytes of weights in a file beside it, in several tensors; 0 for weights inside.
    """
    folder.mkdir()
    count = max(outside // 4 // 256 // 4, 1)
    names = ["a", "b", "c", "d"]
    square = helper.make_node("Mul", ["x", "x"], ["q"])
    mean = helper.make_node("ReduceMean", ["q"], ["m"], axes=[-1])
    nodes = [square, mean, *(helper.make_node(*n) for n in (
        ("Add", ["m", "e"], ["s"]), ("Sqrt", ["s"], ["r"]), ("Div", ["x", "r"], ["n"]), ("Mul", ["n", "w"], ["y"]),
    ))]  # fmt: skip
    nodes += [helper.make_node("ReduceMax", [name], [f"most_{name}"], keepdims=0) for name in names]
    values = [("w", np.full(256, value, np.float32)), ("e", np.array(1e-5, np.float32))]
    values += [(name, np.full((count, 256), value, np.float32)) for name in names]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, [2, 256])],
        [info("y", TensorProto.FLOAT, [2, 256]), *(info(f"most_{n}", TensorProto.FLOAT, []) for n in names)],
        [numpy_helper.from_array(array, name) for name, array in values],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "m.onnx"
    if outside:
        onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=1024)
    else:
        onnx.save(model, path)
    return path


def value_of(path):
    """What the weights of a whole fused model are; raises or returns None where it is not whole."""
    model = onnx.load(path)
    onnx.checker.check_model(model)
    found = {
        float(v) for t in model.graph.initializer if t.name in "abcdw" for v in np.unique(numpy_helper.to_array(t))
    }
    fused = any(n.op_type == "RMSNorm" for n in model.graph.node)
    return found.pop() if fused and len(found) == 1 else None


def fusing(path, output, *options):
    """What a child does: the command ``fuse``."""
    return lambda: main(["fuse", str(path), "-o", str(output), *options])


class Place:
    """A folder with two inputs, of weights 1 and 2, and one for outputs."""

    def __init__(self, folder, outside=0):
        self.one, self.two = make(folder / "one", 1, outside), make(folder / "two", 2, outside)
        self.out = folder / "out"
        self.output = self.out / OUTPUT
        self.stamps = self._stamps()
        self.names = 2 if outside else 1
        self.out.mkdir()

    def _stamps(self):
        files = [f for path in (self.one, self.two) for f in path.parent.iterdir()]
        return {f: (f.stat().st_ino, f.stat().st_size, f.stat().st_mtime_ns) for f in files}

    def clear(self):
        """An output folder as at first."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()

    def begin(self, force):
        """The state before a run: an old output of weights 1 with ``force``, none without."""
        self.clear()
        if force:
            assert outcome(fusing(self.one, self.output))[0] == 0

    def wrong(self, allowed):
        """Why the output is none of those allowed (None: absent), or an input has changed; empty if all is well."""
        if self._stamps() != self.stamps:
            return "an input has changed"
        try:
            found = value_of(self.output) if self.output.exists() else None
        except Exception as error:  # whatever onnx says of half a file
            return f"the output is damaged: {error}"
        return "" if found in allowed else f"the output is {found} and not of {allowed}"

    def crowded(self):
        """The names in the output folder, where there are more than the output and its weights."""
        names = sorted(p.name for p in self.out.iterdir())
        return f"left over: {names}" if names and len(names) != self.names else ""


def killed(place, force, count, rng, *, changes=True):
    """Kills at every change of the file system, with ``changes``, then at random moments until there are ``count``."""
    run = fusing(place.two, place.output, *(["--force"] if force else []))
    place.begin(force)
    begun = time.monotonic()
    assert outcome(run)[0] == 0
    took = time.monotonic() - begun
    place.begin(force)
    made, at, tries = 0, 0 if changes else None, 0
    hidden = os.open(os.devnull, os.O_WRONLY)
    while at is not None or made < count:
        if at is not None:
            dead = outcome(run, lambda at=at: at_change(at, die))[0] == -9
            where = f"change {at}"
            at = at + 1 if dead else None
        else:
            tries += 1
            assert tries < 100 * count, "runs end before they are killed"
            child, moment = start(run, said=hidden), rng.uniform(0, took)
            time.sleep(moment)
            os.kill(child, signal.SIGKILL)
            dead = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
            where = f"moment {moment:.4f} s"
        if dead:
            made += 1
            if wrong := place.wrong({1, 2} if force else {None, 2}):
                yield f"{where}: {wrong}"
            # the next run, which is the one that has to clean
            if not force and place.output.exists():
                place.output.unlink()
                (place.out / f"{OUTPUT}.data").unlink(missing_ok=True)
            status, said = outcome(fusing(place.one, place.output, *(["--force"] if force else [])))
            if status or place.wrong({1}) or place.crowded():
                yield f"{where}: after it {status} {said} {place.wrong({1})} {place.crowded()}"
                place.begin(force)
        if not force:
            place.clear()
        elif not dead:
            place.begin(force)
    os.close(hidden)


def told(status, said, codes):
    """Why the end of a command is not as documented; empty if it is."""
    lines = said.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    if status not in codes or len(errors) != 1 or "Traceback" in said or len(lines) > 4:
        return f"status {status}: {said!r}"
    return ""


def failing(place, force, before, codes, allowed, *, gone=False):
    """One run with a fault: what is wrong afterwards, and whether it failed at all."""
    place.begin(force)
    old = listing(place.out)
    status, said = outcome(fusing(place.two, place.output, *(["--force"] if force else [])), before)
    wrong = told(status, said, codes) if status else ""
    if gone:
        return status, wrong
    wrong = wrong or place.wrong(allowed if status else {2}) or place.crowded()
    if not wrong and status and listing(place.out) != old:
        wrong = f"left over: {sorted(listing(place.out))}"
    return status, wrong


def without_space(place, force, count, rng):
    """The disk is full at each change of the file system, and after a random number of bytes."""

    def full():
        raise OSError(28, "No space left on device")

    happened = place.out.parent / "happened"

    def once(at):
        at_change(at, lambda: (happened.touch(), full()), but=("os.remove", "os.rmdir"))

    for at in range(1000):
        happened.unlink(missing_ok=True)
        status, wrong = failing(place, force, lambda at=at: once(at), {2}, {1} if force else {None})
        if wrong:
            yield f"change {at}: {wrong}"
        if not happened.exists():
            break
    size = max(f.stat().st_size for f in place.two.parent.iterdir())
    for _ in range(count):
        most = rng.randrange(size)
        limit = lambda most=most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # noqa: E731
        status, wrong = failing(place, force, limit, {2}, {1} if force else {None})
        if wrong or not status:
            yield f"{most} bytes: {wrong or 'not noticed'}"


def folder_removed(place):
    """The output's folder goes away at each change of the file system."""
    happened = place.out.parent / "happened"

    def gone():
        happened.touch()
        shutil.rmtree(place.out, ignore_errors=True)

    for at in range(1000):
        happened.unlink(missing_ok=True)
        _, wrong = failing(place, False, lambda at=at: at_change(at, gone), {2, 3}, {None}, gone=True)
        if wrong:
            yield f"change {at}: {wrong}"
        if not happened.exists():
            break


def two_at_once(place, force, count):
    """Two runs with one output, of different models."""
    hidden = os.open(os.devnull, os.O_WRONLY)
    for number in range(count):
        place.begin(force)
        options = ["--force"] if force else []
        children = [start(fusing(path, place.output, *options), said=hidden) for path in (place.one, place.two)]
        if wrong := ended(place, force, children):
            yield f"pair {number}: {wrong}"
    os.close(hidden)


def ended(place, force, children):
    """Wait for two runs with one output; why that is not of one of them, or empty if all is well."""
    ends = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    wrong = place.wrong({1, 2}) or place.crowded()
    return f"{ends} {wrong}" if wrong or ends != ([0, 0] if force else [0, 2]) else ""


def overtaken(place, force):
    """At each change of the file system by one run, another with the same output goes as far as it can."""
    hidden = os.open(os.devnull, os.O_WRONLY)
    options = ["--force"] if force else []
    for at in range(1000):
        place.begin(force)
        (heard, tells), (waits, lets) = os.pipe(), os.pipe()

        def stop(tells=tells, waits=waits):
            os.write(tells, b"!")
            os.read(waits, 1)

        # none of them is a child of the other, which would inherit its locks
        slow = start(fusing(place.two, place.output, *options), lambda at=at, stop=stop: at_change(at, stop), hidden)
        os.close(tells)
        reached, children = bool(os.read(heard, 1)), [slow]
        if reached:
            children.append(start(fusing(place.one, place.output, *options), said=hidden))
            until_it_waits(children[1])
            os.write(lets, b"!")
        wrong = ended(place, force, children)
        for end in (heard, waits, lets):
            os.close(end)
        if not reached:
            break
        if wrong:
            yield f"change {at}: {wrong}"
    os.close(hidden)


def until_it_waits(child):
    """Return when ``child`` has ended or waits for a lock on a file; after a while where that cannot be seen."""
    locks, status = Path("/proc/locks"), Path(f"/proc/{child}/stat")
    ends = time.monotonic() + (60 if locks.exists() else 5)
    while time.monotonic() < ends and status.read_text().rpartition(")")[2].split()[0] != "Z":
        if locks.exists() and any("->" in line and f" {child} " in line for line in locks.read_text().splitlines()):
            return
        time.sleep(0.005)


def input_changed(place, how):
    """The input, or its weights, change at each opening of a file."""
    for at in range(1000):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(place.one.parent)
        shutil.rmtree(place.two.parent)
        outside = place.names == 2
        size = SOME if outside else 0
        make(place.one.parent, 1, size)
        make(place.two.parent, 2, size)
        place.clear()
        happened = place.out.parent / "happened"
        happened.unlink(missing_ok=True)

        def act(happened=happened):
            happened.touch()
            how(place)

        status, said = outcome(fusing(place.two, place.output), lambda at=at, act=act: at_change(at, act, reading=True))
        place.stamps = place._stamps()
        wrong = (told(status, said, {2, 3}) if status else "") or place.wrong({None} if status else {1, 2})
        if wrong or place.crowded():
            yield f"opening {at}: {status} {wrong} {place.crowded()}"
        if not happened.exists():
            return


def replaced(place):
    """Others under the names of the input."""
    for file in place.one.parent.iterdir():
        file.replace(place.two.parent / file.name)


def overwritten(place):
    """Others in the files of the input."""
    for file in place.one.parent.iterdir():
        (place.two.parent / file.name).write_bytes(file.read_bytes())


def truncated(place):
    """The input has half of its bytes."""
    for file in place.two.parent.iterdir():
        os.truncate(file, file.stat().st_size // 2)


def removed(place):
    """The input is gone."""
    shutil.rmtree(place.two.parent)
    place.two.parent.mkdir()


CHANGES = (replaced, overwritten, truncated, removed)
