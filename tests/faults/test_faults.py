"""Small counts of what ``make faults`` runs in full."""

import multiprocessing
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import disk, load, saves
from tests.support.changes import outcome

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, audit events and limits of Linux")
ROOT = Path(__file__).parents[2]
OUTSIDE = pytest.mark.parametrize("outside", [0, saves.SOME], ids=["inside", "outside"])
FORCE = pytest.mark.parametrize("force", [False, True], ids=["new", "force"])


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory):
    saves.warm(tmp_path_factory.mktemp("warm"))


@FORCE
@OUTSIDE
def test_a_run_that_is_killed_at_a_random_moment_leaves_old_or_new(tmp_path, outside, force):
    place = saves.Place(tmp_path, outside)
    assert list(saves.killed(place, force, 3, random.Random(1), changes=False)) == []


def test_a_command_that_is_killed_at_any_change_leaves_old_or_new(tmp_path):
    place = saves.Place(tmp_path, saves.SOME)
    assert list(saves.killed(place, True, 0, random.Random(1))) == []


@pytest.mark.parametrize(("outside", "force"), [(0, False), (saves.SOME, True)], ids=["new", "force"])
def test_a_full_disk_is_said_and_changes_nothing(tmp_path, outside, force):
    assert list(saves.without_space(saves.Place(tmp_path, outside), force, 3, random.Random(1))) == []


@pytest.mark.skipif(not disk.able(), reason="needs to mount a file system")
def test_small_and_read_only_disks_are_said(tmp_path):
    command = [*disk.COMMAND, sys.executable, "-m", "tests.faults.disk", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_an_output_folder_that_goes_away_is_said(tmp_path):
    assert list(saves.folder_removed(saves.Place(tmp_path))) == []


@FORCE
def test_two_runs_with_one_output_make_one_of_them(tmp_path, force):
    assert list(saves.two_at_once(saves.Place(tmp_path, saves.SOME), force, 2)) == []


@FORCE
def test_a_run_that_another_overtakes_leaves_one_of_them(tmp_path, force):
    assert list(saves.overtaken(saves.Place(tmp_path, saves.SOME), force)) == []


@pytest.mark.parametrize("how", saves.CHANGES, ids=lambda how: how.__name__)
def test_weights_that_change_while_they_are_copied_are_never_mixed(tmp_path, how):
    assert list(saves.input_changed(saves.Place(tmp_path, saves.SOME), how)) == []


def no_file(path):
    path.unlink()


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def folder(path):
    path.unlink()
    path.mkdir()


def loop(path):
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize("name", ["m.onnx", "w.bin"])
@pytest.mark.parametrize("odd", [no_file, pipe, device, folder, loop], ids=lambda odd: odd.__name__)
def test_an_input_that_is_no_file_is_refused_at_once(tmp_path, odd, name):
    place = saves.Place(tmp_path, saves.SOME)
    odd(place.two.with_name(name))
    status, said = outcome(saves.fusing(place.two, place.output))
    assert saves.told(status, said, {3}) == ""
    assert list(place.out.iterdir()) == []


def test_many_threads_on_one_session_compute_the_same_bits():
    made, different = load.concurrent(64, 20_000, norms=60)
    assert made >= 20_000
    assert different == 0


def test_the_comparison_of_threads_sees_one_bit(monkeypatch):
    opened = load.session_of

    class Off:
        def __init__(self, session):
            self.session = session

        def run(self, *given):
            y = self.session.run(*given)[0]
            y.view("uint32")[0, -1] ^= 1
            return [y]

    monkeypatch.setattr(
        load, "session_of", lambda model, threads=2: opened(model, 1) if threads == 1 else Off(opened(model, 2))
    )
    assert load.concurrent(2, 120, norms=6) == (120, 20)


def test_many_threads_register_and_open_at_once():
    assert load.registered(16) == 0


PROCESSES = """
import os, sys
import rmsnorm_deploy
from tests.faults import load
if sys.argv[1] == "session":
    mine = load.computed(2)
child = os.fork()
if not child:
    sys.stdout.write(load.computed(2).hex() + "\\n")
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
sys.stdout.write(load.computed(2).hex() + "\\n")
"""


@pytest.mark.parametrize("after", ["import", "session"])
def test_a_forked_process_makes_sessions_of_its_own(after):
    command = [sys.executable, "-c", PROCESSES, after]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    child, parent = done.stdout.split()
    assert child == parent == load.computed().hex()


def test_a_spawned_process_makes_sessions_of_its_own():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(load.computed) == load.computed()
