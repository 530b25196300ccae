"""Grade one submission: repair it, run it apart, decide. Runs in a worker, on this machine or another."""
import functools
import threading
import time
from dataclasses import replace
from multiprocessing.util import Finalize

from autograde.chapter import load_chapters
from autograde.graded import Graded, RanCell, Verdict
from autograde.handout import handed_out
from autograde.referee import judge, prepare
from autograde.repair import repair
from autograde.sandbox import Sandbox

LONGEST_TEXT = 20_000  # characters of a cell or of its output that are kept for the pages
_own = threading.local()  # a sandbox serves one thread, and a worker of Dask has several
_reading = threading.Lock()  # Python's own parser may fail when two threads use it at once


def grade_submission(chapter_name, candidates, unsafe=False):
    """The Graded of one learner's candidates for one chapter; the best one counts.

    Raises InputError where the sandbox cannot start: nothing in a submission raises.
    """
    graded = [_grade(chapter_name, candidate, unsafe) for candidate in candidates]
    best = max(graded, key=lambda one: sum(verdict.passed for verdict in one.verdicts.values()))
    if len(graded) == 1:
        return best
    names = ", ".join(candidate.name for candidate in candidates)
    note = f"{names}: 得分最高的 {best.notebook} 算数 · the best one counts, {best.notebook}"
    return replace(best, notes=(note, *best.notes), wall_s=sum(one.wall_s for one in graded))


def _grade(chapter_name, candidate, unsafe):
    start = time.monotonic()
    with _reading:
        exam = _exam(chapter_name)
        repaired = repair(exam.chapter, candidate)
    outcome = judge(exam, repaired.cells, _sandbox(unsafe))
    cells = tuple(
        RanCell(todo, source[:LONGEST_TEXT], run.error, run.printed[:LONGEST_TEXT])
        for (todo, source), run in zip(repaired.cells, outcome.cells) if source
    )
    broken = dict(repaired.problems)
    verdicts = {}
    for todo in exam.chapter.todos:
        for test_id in todo.tests:
            verdict = outcome.verdicts[test_id]
            if not verdict.passed and todo.grade_id in broken:  # it says more than that the function is missing
                verdict = Verdict(False, f"[{todo.label}] {broken[todo.grade_id]}")
            verdicts[test_id] = verdict
    notes = (*repaired.notes, *outcome.notes)
    return Graded(verdicts, cells, notes, candidate.problem, candidate.name, unsafe, time.monotonic() - start)


def warm_up():
    """Prepare every chapter, which takes seconds; workers that are forked later have it."""
    for name, chapter in _chapters().items():
        _exam(name)
        handed_out(chapter)


@functools.cache
def _exam(chapter_name):
    return prepare(_chapters()[chapter_name])


@functools.cache
def _chapters():
    return {chapter.name: chapter for chapter in load_chapters()}


def _sandbox(unsafe):
    """This thread's sandbox, which stays for all its submissions."""
    boxes = vars(_own).setdefault("boxes", {})
    if unsafe not in boxes:
        boxes[unsafe] = Sandbox(unsafe=unsafe)
        Finalize(None, boxes[unsafe].close, exitpriority=0)  # atexit does not run in a worker process
    return boxes[unsafe]
