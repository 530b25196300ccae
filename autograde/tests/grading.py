"""Helpers of the tests that grade classes: the tiny chapter's submissions, and what a run left behind."""
import csv
import functools
import html
import json
import re
import subprocess
import sys

from autograde import build, worker
from autograde.chapter import load_chapters, nbgrader
from autograde.course import open_gradebook
from autograde.paths import ROOT
from autograde.sandbox import Limits, Sandbox

TIERS, POOLS = "39a_inference_fallback_and_tiers", "39b_hetero_pd_and_serving_tiers"
DOUBLING = "01_doubling"
RIGHT = "def double(number):\n    return 2 * number"


def chapter_named(name):
    return next(found for found in load_chapters() if found.name == name)


def answered(source):
    """The tiny chapter's notebook with this answer."""
    notebook = build.release_notebook(load_chapters()[0], "en")
    next(cell for cell in notebook.cells if cell.id == "double").source = source
    return notebook


def solved_text(chapter, **answers):
    """Text of the learner's notebook of a chapter, whole, solved but for `answers` {grade id: source}."""
    notebook = build.release_notebook(chapter, "zh")
    right = {nbgrader(cell)["grade_id"]: cell.source for cell in build.solved_notebook(chapter, "zh").cells
             if nbgrader(cell).get("solution")}
    for cell in notebook.cells:
        if nbgrader(cell).get("solution"):
            cell.source = (right | answers)[nbgrader(cell)["grade_id"]]
    return build.text(notebook)


def hand_in_whole(folder, learner, name, text):
    """Write text as a learner's submission in nbgrader's layout."""
    path = folder / learner / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def points(outcome):
    """{(learner, chapter): points} of the ClassResults."""
    return {(one.learner, one.chapter.name if one.chapter else ""): sum(mark.points for mark in one.marks)
            for one in outcome}


def in_gradebook(results, db_url=None):
    """{(learner, chapter): score} of nbgrader's gradebook; fails where it holds anything twice."""
    with open_gradebook(results, db_url) as gradebook:
        found = [(submission.student.id, assignment.name, submission.score)
                 for assignment in gradebook.assignments for submission in assignment.submissions]
    scores = {(learner, name): score for learner, name, score in found}
    assert len(scores) == len(found)
    return scores


def in_marks_csv(results):
    """{(learner, chapter): points} of marks.csv; fails where it holds anything twice."""
    with open(results / "marks.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({(row["learner"], row["chapter"], row["todo"]) for row in rows}) == len(rows)
    scores = {}
    for row in rows:
        key = (row["learner"], row["chapter"])
        scores[key] = scores.get(key, 0) + float(row["points"])
    return scores


def start_grading(submissions, results, *arguments):
    """The command line's grading run as a process of its own."""
    command = [sys.executable, "-m", "autograde", "grade", str(submissions), "--results", str(results), *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )


def kept(results):
    """The names of the results that are kept whole."""
    return {path.name for path in (results / "kept").glob("[!.]*.json") if json.loads(path.read_text(encoding="utf-8"))}


def grade_quickly(*arguments):
    """In place of worker.grade_submission: what hangs is stopped sooner."""
    boxes = vars(worker._own).setdefault("boxes", {})
    if False not in boxes:
        boxes[False] = Sandbox(Limits(cell_s=4, call_s=2))
    return worker.grade_submission(*arguments)


def leaked(page, chapter_name):
    """Lines of hidden tests that a page shows."""
    shown = html.unescape(re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8")))
    return [line for line in hidden_lines(chapter_name) if line in shown]


@functools.cache
def hidden_lines(chapter_name):
    """Lines of the chapter's hidden tests that stand in no learner's notebook."""
    source, release = (
        [line.strip() for cell in make(chapter_named(chapter_name), "en").cells if nbgrader(cell).get("grade")
         for line in cell.source.split("\n")]
        for make in (build.source_notebook, build.release_notebook)
    )
    hidden = [line for line in source if len(line) > 12 and line not in "\n".join(release)]
    assert len(hidden) > 10
    return hidden
