"""Grade a class, or one notebook: find, repair, run apart, decide, record, tell."""
import contextlib
import filecmp
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from nbgrader.api import InvalidEntry
from nbgrader.converters.base import NbGraderException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from sqlalchemy.exc import DBAPIError

from autograde import pool, report, store
from autograde.chapter import load_chapters
from autograde.course import open_gradebook, prepare_course
from autograde.errors import InputError
from autograde.graded import Graded, Mark, marks_of
from autograde.intake import find_submissions
from autograde.record import earlier_scores, record, together
from autograde.sandbox import sandbox_available
from autograde.worker import grade_submission

TOGETHER = 50  # submissions that are recorded in one transaction, which shuts others out for a second
_KEPT = "What was graded is kept, run again"
_BROKE_DOWN = "批改程序每次都在这份作业上中断，请告诉老师 · the grader broke down on this file: tell the instructors"


class ClassResult(NamedTuple):
    """One submission's way through: `graded` is None where there was no notebook of a known chapter."""

    learner: str
    chapter: object
    marks: list
    graded: Graded | None


def grade_class(submissions, results, db_url=None, *, scheduler=None, unsafe=False):
    """Grade what lies at `submissions` (see intake.py for the forms it may have); returns a ClassResult for each.

    Writes into `results`: nbgrader's course folder with its gradebook and executed notebooks, marks.csv, pages, and
    what was graded, so that a second run grades only what changed. A submission that cannot be graded gets 0 points
    and a reason; it stops nobody. Raises InputError, before anything is written, where nothing can be graded at all.
    """
    results = Path(results).resolve()
    if results.is_relative_to(Path(submissions).resolve()):
        raise InputError(f"{submissions}: the results folder lies in it; give the folder of the submissions alone")
    chapters = {chapter.name: chapter for chapter in load_chapters()}
    found = find_submissions(submissions, chapters=list(chapters.values()))
    if not any(one.candidates for one in found):
        reasons = "; ".join(problem for one in found[:3] for problem in one.problems) or "it is empty"
        raise InputError(f"{submissions}: no notebook of a known chapter ({', '.join(chapters)}): {reasons}")
    _need_sandbox(unsafe)
    try:
        with store.only_one(results, db_url):
            prepare_course(results, db_url, list(chapters.values()))
            graded = _grade_all(found, chapters, results / "kept", scheduler, unsafe)
            with open_gradebook(results, db_url) as gradebook:
                outcome = []
                for start in range(0, len(found), TOGETHER):
                    with together(gradebook):
                        outcome += [_result(one, graded.get(_name(one)), chapters, gradebook, results)
                                    for one in found[start:start + TOGETHER]]
                for one in found:
                    _copy_submitted(one, graded.get(_name(one)), Path(submissions), results)
            _write_reports(outcome, results)
    except OSError as error:
        raise InputError(f"{error.filename or results}: {error.strerror}. {_KEPT}") from None
    except (DBAPIError, InvalidEntry) as error:
        reason = str(getattr(error, "orig", error)).split("\n")[0]
        raise InputError(f"gradebook: {reason}; is another program using it? {_KEPT}") from None
    except NbGraderException as error:
        raise InputError(f"{results}: nbgrader cannot prepare it (gradebook locked, disk full?): {error}") from None
    return outcome


def check_notebook(path, *, unsafe=False):
    """(marks, notes) of one learner's notebook; its chapter is told by its name, grade ids or functions.

    Raises InputError when it cannot be read, or belongs to no chapter.
    """
    chapters = {chapter.name: chapter for chapter in load_chapters()}
    found = find_submissions(path, chapters=list(chapters.values()), learner=Path(path).stem)
    readable = [one for one in found if one.chapter and any(not candidate.problem for candidate in one.candidates)]
    if not readable:
        problems = [p for one in found for p in (*one.problems, *(c.problem for c in one.candidates)) if p]
        raise InputError(
            f"{path}: {problems[0] if problems else '看不出是哪一章 · of no known chapter'}; "
            f"expected one of {', '.join(chapters)}"
        )
    _need_sandbox(unsafe)
    one = readable[0]
    graded = grade_submission(one.chapter, one.candidates, unsafe)
    return marks_of(chapters[one.chapter], one.learner, graded), graded.notes


def _need_sandbox(unsafe):
    reason = None if unsafe else sandbox_available()
    if reason:
        raise InputError(reason)


def _student(one):
    """nbgrader's name for the learner, which is a folder's name too."""
    plain = one.learner.strip(". ") == one.learner and not set(one.learner) & set('/\\\0:*?"<>|+')
    return one.learner if plain and len(one.learner.encode()) < 200 else one.folder


def _name(one):
    return one.learner, one.chapter


def _grade_all(found, chapters, folder, scheduler, unsafe):
    """{(learner, chapter's name): Graded}; what is kept from an earlier run is not graded again."""
    asked = {_name(one): one for one in found if one.candidates and one.chapter}
    keys = {name: store.key_of(chapters[one.chapter], one.candidates, unsafe) for name, one in asked.items()}
    graded = {name: store.kept(folder, key) for name, key in keys.items()}
    tasks = {name: (name[1], asked[name].candidates, unsafe) for name in asked if graded[name] is None}
    console = Console(stderr=True)
    columns = (TextColumn("grading"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("", total=len(keys), completed=len(keys) - len(tasks))

        def watch(running):
            progress.update(bar, description=", ".join(learner for learner, _ in running[:4]))

        with contextlib.closing(pool.run_all(grade_submission, tasks, scheduler, watch)) as finished:
            for name, result in finished:
                if result:
                    store.keep(folder, keys[name], result)
                graded[name] = result or Graded({}, (), (), _BROKE_DOWN, "", unsafe, 0)
                progress.advance(bar)
    return graded


def _result(one, graded, chapters, gradebook, results):
    """Record one submission and make its marks."""
    student, chapter = _student(one), chapters.get(one.chapter)
    if chapter is None:
        names = ", ".join(candidate.name for candidate in one.candidates)
        stranger = f"{names}：看不出是哪一章 · of no known chapter; expected one of {', '.join(chapters)}"
        return ClassResult(student, None, [Mark(student, "", "", 0, 0, "; ".join(one.problems) or stranger)], None)
    if graded is None:
        graded = Graded({}, (), (), "; ".join(one.problems), "", False, 0)
    graded = replace(graded, notes=(*one.problems, *graded.notes))
    if graded.problem:
        earlier = earlier_scores(gradebook, chapter, student)
        if any(earlier.values()):  # an unreadable file does not undo what was graded before
            remark = replace(graded, problem=f"{graded.problem} · 仍是上次的成绩 · the earlier result stands")
            return ClassResult(student, chapter, marks_of(chapter, student, remark, earlier), remark)
    by_hand = record(gradebook, results, chapter, student, graded)
    return ClassResult(student, chapter, marks_of(chapter, student, graded, by_hand), graded)


def _copy_submitted(one, graded, submissions, results):
    """Put the file that counts where nbgrader's own commands look for it; one out of an archive stays there."""
    name = graded.notebook if graded and graded.notebook else next((one.name for one in one.candidates), "")
    source, chapter = submissions / name, one.chapter
    if chapter and name and source.is_file():
        target = results / "submitted" / _student(one) / chapter / f"{chapter}.ipynb"
        if not (target.exists() and filecmp.cmp(source, target)):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def _write_reports(outcome, results):
    marks = [mark for one in outcome for mark in one.marks]
    report.write_marks_csv(marks, results / "marks.csv")
    report.write_learner_pages(outcome, results / "feedback")
    report.write_class_page(outcome, results / "class.html")
    report.write_lms_csvs(outcome, results)
