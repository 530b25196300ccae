"""Record results in nbgrader's terms: scores in its gradebook, the executed notebook under `autograded/`.

Recording is the same whether it is the first time or the tenth: a run that was killed is recorded again in whole.
"""
import contextlib
import hashlib
import json
import logging
import warnings

from nbgrader.api import MissingEntry
from sqlalchemy.exc import SAWarning

from autograde import build
from autograde.chapter import nbgrader
from autograde.course import SOURCE_LANGUAGE, write_atomically

_TEMPLATES = {}  # by chapter


@contextlib.contextmanager
def together(gradebook):
    """One transaction of all that is recorded within: nbgrader's own calls wait for the disk thrice a submission."""
    with gradebook.engine.begin() as connection:
        gradebook.db.remove()
        gradebook.db.configure(bind=connection, expire_on_commit=False)  # commits of this session are not the last word
        yield
        gradebook.db.remove()

_NBGRADERS_LOG = logging.getLogger("tornado.application")


def record(gradebook, root, chapter, learner, graded):
    """Write one submission's scores and notebook; {test id: score} of those that somebody gave by hand.

    A score given by hand stays; where the automatic one has changed, formgrader asks to look at it again.
    Raises OSError where the folder cannot be written, DBAPIError or InvalidEntry where the gradebook cannot.
    """
    write_atomically(
        root / "autograded" / learner / chapter.name / f"{chapter.name}.ipynb", _notebook_text(chapter, graded)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SAWarning)  # SQLAlchemy's, about nbgrader's own queries
        _NBGRADERS_LOG.disabled = True  # what it would log is raised too
        try:
            return _scores(gradebook, chapter, learner, graded)
        finally:
            _NBGRADERS_LOG.disabled = False


def _scores(gradebook, chapter, learner, graded):
    gradebook.update_or_create_student(learner)
    submission = gradebook.update_or_create_submission(chapter.name, learner)
    by_hand = {}
    points = {test_id: most for todo in chapter.todos for test_id, most in todo.tests.items()}
    for grade in submission.notebooks[0].grades:
        verdict = graded.verdicts.get(grade.name)
        before, grade.auto_score = grade.auto_score, points[grade.name] if verdict and verdict.passed else 0
        if grade.manual_score is None:
            grade.needs_manual_grade = False
        else:
            grade.needs_manual_grade |= grade.auto_score != before
            by_hand[grade.name] = grade.manual_score
    gradebook.db.commit()
    return by_hand


def earlier_scores(gradebook, chapter, learner):
    """{test id: score} that an earlier run or a person gave; {} when there is none."""
    try:
        grades = gradebook.find_submission(chapter.name, learner).notebooks[0].grades
    except MissingEntry:
        return {}
    return {grade.name: grade.score for grade in grades}


def _notebook_text(chapter, graded):
    """The executed notebook: the released one with the learner's code in it and the checks' lines below them."""
    answers, helpers = {}, []
    for cell in graded.cells:
        helpers.append(cell)
        if cell.todo:
            answers[cell.todo] = answers.get(cell.todo, []) + helpers
            helpers = []
    cells = []
    template = _template(chapter)
    for cell in template["cells"]:
        meta = cell["metadata"].get("nbgrader", {})
        if meta.get("solution") and meta["grade_id"] in answers:
            *before, answer = answers[meta["grade_id"]]
            cells += [_added(one) for one in before]
            cell = {**cell, "source": answer.source, "outputs": _outputs(answer.error, answer.printed)}
        elif meta.get("grade"):
            verdict = graded.verdicts.get(meta["grade_id"])
            line = verdict.line if verdict else graded.problem
            cell = {**cell, "outputs": _outputs("", line) if verdict and verdict.passed else _outputs(line, "")}
        cells.append(cell)
    notebook = {**template, "cells": cells + [_added(one) for one in helpers]}
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"


def _template(chapter):
    """The released notebook as data, with the hidden tests, which instructors see in nbgrader too."""
    key = (chapter.name, *(cell.source for cell in chapter.cells))
    if key not in _TEMPLATES:
        _TEMPLATES[key] = _made(chapter)
    return _TEMPLATES[key]


def _made(chapter):
    source = build.source_notebook(chapter, SOURCE_LANGUAGE).cells
    release = build.release_notebook(chapter, SOURCE_LANGUAGE)
    for full, released in zip(source, release.cells, strict=True):
        if nbgrader(full).get("grade"):
            released.source = full.source
    return json.loads(build.text(release))


def _added(cell):
    digest = hashlib.sha256(cell.source.encode("utf-8", "replace")).hexdigest()[:12]
    return {
        "cell_type": "code", "execution_count": None, "id": f"added-{digest}", "metadata": {"tags": ["added"]},
        "outputs": _outputs(cell.error, cell.printed), "source": cell.source,
    }


def _outputs(error, printed):
    outputs = []
    if printed:
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed})
    if error:
        outputs.append({"ename": "Error", "evalue": error, "output_type": "error", "traceback": [error]})
    return outputs
