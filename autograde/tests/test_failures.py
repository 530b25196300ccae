"""Planted failures: whatever stops a grading run, nothing is lost, nothing counts twice, and a rerun does the rest."""
import contextlib
import itertools
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError

import pytest
from conftest import TINY
from grading import (
    DOUBLING,
    RIGHT,
    TIERS,
    answered,
    chapter_named,
    hand_in_whole,
    in_gradebook,
    in_marks_csv,
    kept,
    points,
    solved_text,
    start_grading,
)

from autograde import course, grade, pool, record, store
from autograde.__main__ import main
from autograde.course import open_gradebook, write_atomically
from autograde.errors import InputError
from autograde.grade import grade_class
from autograde.sandbox import sandbox_available

WHY_NOT = sandbox_available()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "")
SLOW_ANSWER = "import time\ntime.sleep({seconds})\n\n\ndef {name}(*args):\n    return {number}"
CLASS = [f"learner{number:02}" for number in range(8)]


@pytest.fixture
def counted(monkeypatch):
    """[(chapter, names of the files)] of every submission that is graded, in this process."""
    calls = []
    real = grade.grade_submission

    def counting(chapter, candidates, unsafe):
        calls.append((chapter, [candidate.name for candidate in candidates]))
        return real(chapter, candidates, unsafe)

    monkeypatch.setattr(grade, "grade_submission", counting)
    return calls


@pytest.fixture
def tiny_class(hand_in, tmp_path):
    """(submissions, results) of three learners with the tiny chapter: two right, one wrong."""
    for learner, answer in {"ann": RIGHT, "bo": RIGHT, "cy": "def double(number):\n    return 3"}.items():
        submissions = hand_in(learner, answered(answer))
    return submissions, tmp_path / "results"


TINY_MARKS = {("ann", DOUBLING): 2, ("bo", DOUBLING): 2, ("cy", DOUBLING): 0}


def assert_consistent(results, marks):
    assert in_gradebook(results) == in_marks_csv(results) == marks
    assert not list(results.rglob(".*.part"))  # of half-written files


# ---- only what changed is graded

def test_a_second_run_grades_only_what_changed(tiny_class, hand_in, counted):
    submissions, results = tiny_class
    first = grade_class(submissions, results)
    assert len(counted) == 3
    again = grade_class(submissions, results)
    assert len(counted) == 3 and [one.marks for one in again] == [one.marks for one in first]
    hand_in("bo", answered("def double(number):\n    return 5"))
    hand_in("di", answered(RIGHT))
    grade_class(submissions, results)
    assert sorted(name for _, (name,) in counted[3:]) == [f"{who}/{DOUBLING}/{DOUBLING}.ipynb" for who in ("bo", "di")]
    assert_consistent(results, TINY_MARKS | {("bo", DOUBLING): 0, ("di", DOUBLING): 2})


def test_what_a_killed_write_left_goes_with_the_next_write(tmp_path):
    page = tmp_path / "page.html"
    killed = f"""
import os, pathlib, signal
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
from autograde.course import write_atomically
write_atomically(pathlib.Path({str(page)!r}), "half")
"""
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1 and not page.exists()
    write_atomically(page, "whole")
    assert os.listdir(tmp_path) == ["page.html"] and page.read_text(encoding="utf-8") == "whole"


@pytest.mark.parametrize("damage", ["{", "", '{"verdicts": 1}', "[]"])
def test_a_damaged_kept_result_is_graded_again(tiny_class, counted, damage):
    submissions, results = tiny_class
    grade_class(submissions, results)
    victim = sorted((results / "kept").iterdir())[0]
    victim.write_text(damage)
    assert points(grade_class(submissions, results)) == TINY_MARKS
    assert len(counted) == 4


def test_a_score_given_by_hand_survives_and_shows(tiny_class, hand_in):
    submissions, results = tiny_class
    grade_class(submissions, results)
    with open_gradebook(results) as gradebook:
        grade_of_cy = gradebook.find_grade("test_double", DOUBLING, DOUBLING, "cy")
        grade_of_cy.manual_score, grade_of_cy.needs_manual_grade = 1.5, False
        gradebook.db.commit()

    def asks():
        with open_gradebook(results) as gradebook:
            return gradebook.find_grade("test_double", DOUBLING, DOUBLING, "cy").needs_manual_grade

    grade_class(submissions, results)
    assert_consistent(results, TINY_MARKS | {("cy", DOUBLING): 1.5})
    assert not asks()  # nothing has changed since the person looked at it
    assert "1.5" in (results / "feedback" / "cy" / "index.html").read_text(encoding="utf-8")
    hand_in("cy", answered(RIGHT))
    grade_class(submissions, results)
    assert_consistent(results, TINY_MARKS | {("cy", DOUBLING): 1.5})
    assert asks()
    hand_in("cy", "{")  # unreadable: the earlier result stands
    outcome = grade_class(submissions, results)
    assert_consistent(results, TINY_MARKS | {("cy", DOUBLING): 1.5})
    assert "stands" in next(one for one in outcome if one.learner == "cy").marks[0].reason


# ---- no room, no right to write, somebody else's lock

@contextlib.contextmanager
def mounted(path, options):
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if os.getuid() or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize("room_kb", [4, 100, 300, 400])
def test_a_full_disk_is_said_and_nothing_is_lost(tiny_class, tmp_path, capsys, room_kb):
    submissions, _ = tiny_class
    with mounted(tmp_path / "disk", "size=20m") as disk:
        results = disk / "results"
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * ((20 << 10) - room_kb << 10))
        assert main(["grade", str(submissions), "--results", str(results)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("autograde: ") and error.count("\n") == 1
        assert re.search("No space left on device|disk is full|disk full|cannot be opened", error)
        ballast.unlink()
        assert points(grade_class(submissions, results)) == TINY_MARKS
        assert_consistent(results, TINY_MARKS)


def test_results_that_cannot_be_written_are_said(tiny_class, tmp_path, capsys):
    submissions, _ = tiny_class
    with mounted(tmp_path / "disk", "size=20m") as disk:
        grade_class(submissions, disk / "results")
        before = {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()}
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert main(["grade", str(submissions), "--results", str(disk / "results")]) == 2
        error = capsys.readouterr().err
        assert "Read-only file system" in error and error.count("\n") == 1
        assert {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()} == before


def test_a_results_folder_that_is_a_file_is_said(tiny_class, tmp_path, capsys):
    (tmp_path / "taken").write_text("mine")
    assert main(["grade", str(tiny_class[0]), "--results", str(tmp_path / "taken")]) == 2
    assert "taken" in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize("first_run", [True, False])
def test_a_locked_gradebook_is_said_and_nothing_is_graded_twice(tiny_class, tmp_path, capsys, counted, first_run):
    submissions, results = tiny_class
    if not first_run:
        (submissions / "bo").rename(tmp_path / "later")
        grade_class(submissions, results)
        (tmp_path / "later").rename(submissions / "bo")
    else:
        grade_class(submissions, results)
        shutil.rmtree(results / "kept")
    counted.clear()
    other = sqlite3.connect(results / "gradebook.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE" if first_run else "BEGIN IMMEDIATE")
    assert main(["grade", str(submissions), "--results", str(results)]) == 2
    error = capsys.readouterr().err
    assert "locked" in error and error.count("\n") == 1
    other.execute("ROLLBACK")
    other.close()
    grade_class(submissions, results)
    assert len(counted) == (3 if first_run else 1)  # once, in the run that could not record it
    assert_consistent(results, TINY_MARKS)


def test_two_runs_at_once_on_one_folder_or_one_gradebook(tiny_class, tmp_path, capsys):
    submissions, results = tiny_class
    address = f"sqlite:///{tmp_path / 'shared.db'}"
    with store.only_one(results):
        assert main(["grade", str(submissions), "--results", str(results)]) == 2
        assert "another grading run is writing here" in capsys.readouterr().err
        assert not (results / "gradebook.db").exists()
    with store.only_one(tmp_path / "elsewhere", address):
        assert main(["grade", str(submissions), "--results", str(results), "--db", address]) == 2
        assert "another grading run is writing into this gradebook" in capsys.readouterr().err
        assert main(["grade", str(submissions), "--results", str(results)]) == 0


def test_a_clock_that_jumps_back_changes_nothing(tiny_class, monkeypatch):
    submissions, results = tiny_class
    late = itertools.count(2_000_000_000, -3600)
    monkeypatch.setattr(time, "time", lambda: float(next(late)))
    outcome = grade_class(submissions, results)
    assert points(outcome) == TINY_MARKS and all(0 <= one.graded.wall_s < 60 for one in outcome)
    for path in results.rglob("*"):
        os.utime(path, (4_000_000_000, 4_000_000_000))  # written in the future
    (submissions / "cy" / DOUBLING / f"{DOUBLING}.ipynb").write_text(
        (submissions / "ann" / DOUBLING / f"{DOUBLING}.ipynb").read_text())
    os.utime(submissions / "cy" / DOUBLING / f"{DOUBLING}.ipynb", (1, 1))
    grade_class(submissions, results)
    assert_consistent(results, TINY_MARKS | {("cy", DOUBLING): 2})


@pytest.mark.parametrize("moment", range(1, 4))
def test_an_error_between_any_two_submissions_leaves_a_consistent_gradebook(tiny_class, monkeypatch, moment, counted):
    submissions, results = tiny_class
    real, calls = record._notebook_text, itertools.count(1)

    def break_off(*arguments):
        if next(calls) == moment:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(record, "_notebook_text", break_off)
    with pytest.raises(KeyboardInterrupt):
        grade_class(submissions, results)
    assert len(kept(results)) == 3
    grade_class(submissions, results)
    assert len(counted) == 3
    assert_consistent(results, TINY_MARKS)


def test_killed_while_a_changed_chapter_is_prepared(tiny_class, tiny_course):
    submissions, results = tiny_class
    grade_class(submissions, results)
    tiny_course(TINY.replace("test_double", "test_double_small"))
    child = os.fork()
    if not child:
        course._generate = lambda *arguments: os._exit(9)
        course.prepare_course(results)
    os.waitpid(child, 0)
    grade_class(submissions, results)
    assert_consistent(results, TINY_MARKS)


# ---- the pool

def _first_time_dies(folder, number):
    path = folder / str(number)
    if number == 2 and not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def _two_always_dies(number, bulk):
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def _fail(number):
    raise InputError("no sandbox")


def _pid(_):
    time.sleep(0.2)
    return os.getpid(), os.getppid()


def test_a_killed_worker_loses_nothing(tmp_path):
    tasks = {number: (tmp_path, number) for number in range(6)}
    assert sorted(pool.run_all(_first_time_dies, tasks)) == [(number, number * number) for number in range(6)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [0, 1_000_000])  # a pipe holds less
def test_a_task_that_kills_every_worker_costs_only_itself(size):
    tasks = {number: (number, bytes(size)) for number in range(12)}
    assert dict(pool.run_all(_two_always_dies, tasks)) == {n: None if n == 2 else n * n for n in range(12)}


def test_errors_of_a_task_come_through_and_workers_end():
    with pytest.raises(InputError, match="no sandbox"):
        list(pool.run_all(_fail, {number: (number,) for number in range(6)}))
    found = dict(pool.run_all(_pid, {number: (number,) for number in range(4)}))
    workers = {worker for worker, _ in found.values()}
    assert os.getpid() not in workers
    assert not [worker for worker in workers if alive(worker)]


def test_a_submission_on_which_the_grader_breaks_down_is_listed_and_stops_nobody(tiny_class, monkeypatch, counted):
    submissions, results = tiny_class
    real = pool.run_all

    def run_all(function, tasks, *more):
        tasks = dict(tasks)
        for name in [name for name in tasks if name[0] == "bo"]:
            del tasks[name]
            yield name, None
        yield from real(function, tasks, *more)

    with monkeypatch.context() as patch:
        patch.setattr(pool, "run_all", run_all)
        outcome = {one.learner: one for one in grade_class(submissions, results)}
    assert "the grader broke down" in outcome["bo"].marks[0].reason
    assert outcome["ann"].marks[0].points == 2
    grade_class(submissions, results)  # it is tried again
    assert_consistent(results, TINY_MARKS)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---- the command line's run, stopped from outside

@pytest.fixture(scope="module")
def slow_class(tmp_path_factory):
    """A class in which every submission takes a second: its last answer sleeps."""
    submissions = tmp_path_factory.mktemp("class")
    chapter = chapter_named(TIERS)
    todo = chapter.todos[-1]
    for number, learner in enumerate(CLASS):
        answer = SLOW_ANSWER.format(seconds=1, name=todo.functions[0], number=number)
        hand_in_whole(submissions, learner, TIERS, solved_text(chapter, **{todo.grade_id: answer}))
    return submissions


SLOW_MARKS = {(learner, TIERS): 12 for learner in CLASS}


def wait_for(condition, process, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def group(process):
    """The processes of the run's session, and what they have started: bubblewrap makes sessions of its own."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            parents[int(pid)] = int(file.read().rpartition(")")[2].split()[1])
    found, before = {process.pid}, set()
    while found != before:
        before = set(found)
        found |= {pid for pid, parent in parents.items() if parent in before}
    return found


def assert_all_end(pids, seconds=10):
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.slow
def test_killed_at_any_moment_a_rerun_does_only_the_rest(slow_class, tmp_path):
    results = tmp_path / "results"
    moments = [
        lambda: (results / "source" / TIERS).exists(),  # nbgrader prepares the course
        lambda: len(kept(results)) >= 1,
        lambda: len(kept(results)) >= 4,
        lambda: len(kept(results)) == len(CLASS) and (results / "autograded" / CLASS[2]).exists(),  # it records
        lambda: (results / "feedback").exists(),
    ]
    before = {}
    for moment in moments:
        process = start_grading(slow_class, results)
        wait_for(moment, process)
        pids = group(process)
        process.kill()
        process.communicate()
        assert_all_end(pids)
        now = {name: (results / "kept" / name).stat().st_mtime_ns for name in kept(results)}
        assert before.items() <= now.items()  # what was kept is still there, and was not graded again
        before = now
    process = start_grading(slow_class, results)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and errors == ""
    assert {name: (results / "kept" / name).stat().st_mtime_ns for name in kept(results)} == before
    assert len(before) == len(CLASS)
    assert_consistent(results, SLOW_MARKS)


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_soon(slow_class, tmp_path):
    results = tmp_path / "results"
    process = start_grading(slow_class, results)
    wait_for(lambda: kept(results), process)
    pids = group(process)
    start = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to all of its processes
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (
        130, "autograde: stopped; nothing is lost, run again to go on\n")
    assert time.monotonic() - start < 5
    assert_all_end(pids)
    assert 1 <= len(kept(results)) < len(CLASS)


@pytest.mark.slow
def test_a_killed_worker_and_a_second_run_at_the_same_time(slow_class, tmp_path):
    results = tmp_path / "results"
    process = start_grading(slow_class, results)
    wait_for(lambda: kept(results), process)
    second = start_grading(slow_class, results)
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 2 and "another grading run is writing here" in errors
    for pid in group(process) - {process.pid}:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
            if "sandbox_child" in file.read():  # its parent, or its parent's parent, is the worker
                os.kill(pid, signal.SIGKILL)
    workers = [pid for pid in group(process) if is_worker(pid)]
    if workers:
        os.kill(workers[-1], signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and errors == "", errors
    assert_consistent(results, SLOW_MARKS)


def is_worker(pid):
    """Is this process one of the pool? They are forked from the fork server, and have its command line."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            parent = stat.read().rpartition(")")[2].split()[1]
        with open(f"/proc/{parent}/cmdline", encoding="utf-8") as above:
            return "forkserver" in file.read() and "forkserver" in above.read()
    return False


# ---- Dask

@pytest.mark.slow
def test_grading_over_a_dask_cluster_survives_a_killed_worker(slow_class, tmp_path):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install '.[cluster]'")
    results = tmp_path / "results"
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, host="127.0.0.1", dashboard_address=None, silence_logs=50,
    ) as cluster:
        victim = next(iter(cluster.workers.values())).process.pid

        def kill():
            while not kept(results):
                time.sleep(0.02)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        outcome = grade_class(slow_class, results, scheduler=cluster.scheduler_address)
        killer.join(1)
    assert not alive(victim) or not killer.is_alive()
    assert points(outcome) == SLOW_MARKS
    assert len(kept(results)) == len(CLASS)
    assert_consistent(results, SLOW_MARKS)


def test_a_lost_scheduler_is_said():
    class Lost:
        @staticmethod
        def result():
            raise CancelledError

    with pytest.raises(InputError, match="the Dask scheduler has gone"):
        pool._result(Lost)
