"""Ctrl-C and SIGTERM at any moment, and streams that cannot be written: no traceback, an output means status 0."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rmsnorm_deploy.cli.signals import Signals, Terminated, finished

LLAMA = Path(__file__).parents[2] / "samples" / "models" / "llama_float16.onnx"
PROC = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="sees in /proc what is imported")
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
MODULE = (sys.executable, "-m", "rmsnorm_deploy")
SCRIPT = (sys.executable, "-c", "import sys; from rmsnorm_deploy.cli.app import main; sys.exit(main())")


def interrupted(command, mapped, number=signal.SIGINT):
    """Status and stderr of a command that gets a signal as soon as the library ``mapped`` is in it."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    maps = Path(f"/proc/{child.pid}/maps")
    while child.poll() is None and mapped not in maps.read_text():
        time.sleep(0.001)
    child.send_signal(number)
    return child.wait(60), child.communicate()[1].decode()


@PROC
@pytest.mark.parametrize("mapped", ["_multiarray_umath", "onnx_cpp2py_export"])
@pytest.mark.parametrize("command", [MODULE, SCRIPT], ids=["module", "script"])
def test_while_the_libraries_are_imported_it_ends_at_once(command, mapped):
    assert interrupted([*command, "explain", LLAMA], mapped) == (130, "error: interrupted\n")


@PROC
def test_sigterm_is_the_same(tmp_path):
    found = interrupted([*MODULE, "explain", LLAMA], "_multiarray_umath", signal.SIGTERM)
    assert found == (143, "error: stopped by SIGTERM\n")


@PROC
def test_an_import_in_the_middle_of_a_command_is_waited_for(tmp_path):
    pytest.importorskip("onnxruntime")
    out = tmp_path / "f.onnx"
    status, err = interrupted([*MODULE, "fuse", LLAMA, "-o", out, "--verify"], "onnxruntime_pybind11_state")
    assert (status, err) == (130, "error: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_importing_the_package_leaves_signals_alone():
    code = (
        "import signal; before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]\n"
        "import rmsnorm_deploy, rmsnorm_deploy.__main__, rmsnorm_deploy.cli, rmsnorm_deploy.cli.app\n"
        "rmsnorm_deploy.fuse\n"
        "assert before == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_slow_comes_before_signals_are_taken_care_of():
    code = (
        "import sys, rmsnorm_deploy.cli.app; slow = {'numpy', 'onnx', 'typer', 'typing', 're'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    subprocess.run([sys.executable, "-S", "-E", "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_a_signal_is_an_exception_while_a_command_runs():
    before = signal.getsignal(signal.SIGINT)
    for number, error in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)):
        with Signals(process=False) as signals:
            with pytest.raises(error):
                signal.raise_signal(number)
            signal.raise_signal(number)  # a key that repeats is one signal
            assert signals.arrived == number
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_in_an_import_comes_after_it(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text(
        "import signal, time; signal.raise_signal(signal.SIGINT); time.sleep(0.2); done = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def command():
        import slow_to_import

        assert slow_to_import.done
        time.sleep(10)

    with Signals(process=False) as signals:
        signals.unwind(command.__code__)
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            command()
        assert time.monotonic() - start < 5
    assert "slow_to_import" in sys.modules


def test_a_settled_outcome_is_not_changed_by_a_signal():
    before = signal.getsignal(signal.SIGINT)
    finished()  # no command runs: nothing happens
    assert signal.getsignal(signal.SIGINT) is before
    with Signals(process=False):
        finished()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)


def test_a_command_runs_in_any_thread():
    found = []

    def command():
        with Signals(process=False) as signals:
            found.append(signals.arrived)

    thread = threading.Thread(target=command)
    thread.start()
    thread.join()
    assert found == [None]


@FULL
@pytest.mark.parametrize("options", [[], ["--json"], ["--verify", "--json"], ["--force", "--json"]], ids=" ".join)
def test_a_result_that_cannot_be_told_leaves_no_output(tmp_path, options):
    out = tmp_path / "f.onnx"
    if "--force" in options:
        out.write_bytes(b"before")
    with Path("/dev/full").open("w") as full:
        command = [*MODULE, "fuse", LLAMA, "-o", out, *options]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith("error: cannot write: No space left on device\n")
    assert [p.name for p in tmp_path.iterdir()] == (["f.onnx"] if "--force" in options else [])
    assert not out.exists() or out.read_bytes() == b"before"


def test_a_reader_that_goes_away_leaves_no_output(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    command = [*MODULE, "fuse", LLAMA, "-o", tmp_path / "f.onnx", "--json"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
    assert list(tmp_path.iterdir()) == []


@FULL
@pytest.mark.parametrize("options", [[], ["--json"]], ids=str)
def test_talk_that_cannot_be_written_stops_nothing(tmp_path, options):
    with Path("/dev/full").open("w") as full:
        command = [*MODULE, "fuse", LLAMA, "-o", tmp_path / "f.onnx", *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert done.returncode == 0
    assert "fused" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["f.onnx"]
