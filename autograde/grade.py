"""Grade a class, or one notebook, with nbgrader: points per TODO and the verdict line that explains them."""
import contextlib
import json
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbclient.exceptions import DeadKernelError
from nbgrader.api import MissingEntry
from nbgrader.converters import Autograde, BaseConverter, GenerateFeedback
from nbgrader.preprocessors.execute import UnresponsiveKernelError
from nbgrader.utils import find_all_files
from rich.console import Console
from rich.progress import track
from traitlets import Instance, Unicode

from autograde.chapter import load_chapters
from autograde.course import open_gradebook, prepare_course, run_converter
from autograde.errors import InputError
from autograde.report import write_feedback_pages, write_marks_csv
from toolkit.checks import STAND_IN_REMARK

IGNORED = [".ipynb_checkpoints", "__pycache__", "*.pyc"]
LONGEST_REASON = 500
_STAND_IN = STAND_IN_REMARK.split("{names}")[0]
_DIED = (
    "Python 在运行这份 notebook 时退出了（内存不足？os._exit？）"
    " · Python died while this notebook ran (out of memory? os._exit?)"
)
_STUCK = "代码停不下来，无法中断 · the code could not be interrupted after its time was up"


class Mark(NamedTuple):
    """What one learner got for one TODO. `todo` is "" and `max_points` 0 where no chapter was recognised."""

    learner: str
    chapter: str
    todo: str
    points: float
    max_points: float
    reason: str


class _HandedIn(NamedTuple):
    learner: str
    name: str  # of the folder that should be a chapter's
    folder: Path


def grade_class(submissions, results, db_url=None):
    """Grade SUBMISSIONS/<learner>/<chapter>/<chapter>.ipynb; returns the marks in that order.

    Writes into `results`: nbgrader's course folder with its gradebook, marks.csv and feedback pages.
    A submission that cannot be graded gets 0 points and a reason. Raises InputError, before anything is
    written, when there is nothing to grade at all.
    """
    submissions, results = Path(submissions), Path(results).resolve()
    chapters = {chapter.name: chapter for chapter in load_chapters()}
    handed_in = _handed_in(submissions, results)
    if not any(one.name in chapters for one in handed_in):
        found = ", ".join(sorted({f"{one.learner}/{one.name}" for one in handed_in})[:5])
        raise InputError(
            f"{submissions}: no chapter found in it; found {found}; expected <learner>/<chapter>/ with "
            f"chapter one of {', '.join(chapters)}"
        )
    prepare_course(results, db_url)
    marks = []
    console = Console(stderr=True)
    for one in track(handed_in, "grading", console=console, transient=True, disable=not sys.stderr.isatty()):
        if one.name in chapters:
            marks += _grade(one, chapters[one.name], results, db_url)
        else:
            marks.append(Mark(one.learner, one.name, "", 0, 0, _unknown(one, chapters)))
    write_marks_csv(marks, results / "marks.csv")
    write_feedback_pages(marks, results / "feedback")
    return marks


def check_notebook(path):
    """The marks of one learner's notebook; its chapter is told by its name or else by its grade ids.

    Raises InputError when it cannot be read or graded, or belongs to no chapter.
    """
    path = Path(path)
    notebook = _read(path, path)
    chapter = _chapter_of(path, notebook)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        prepare_course(root, chapters=[chapter])
        submitted = root / "submitted" / "learner" / chapter.name / f"{chapter.name}.ipynb"
        submitted.parent.mkdir(parents=True)
        shutil.copyfile(path, submitted)
        _autograde(root, None, chapter, "learner", path)
        return _marks(root, None, chapter, "learner")


def _handed_in(submissions, results):
    """Every <learner>/<chapter>/ folder, and every learner with none."""
    if submissions.resolve() == results:
        raise InputError(f"{submissions}: is the results folder itself; expected its folder submitted/ or another one")
    if not submissions.is_dir():
        raise InputError(f"{submissions}: no such folder; expected one with <learner>/<chapter>/<chapter>.ipynb")
    learners = [folder for folder in _folders(submissions) if folder.resolve() != results]
    if not learners:
        raise InputError(f"{submissions}: no learner's folder in it; expected <learner>/<chapter>/<chapter>.ipynb")
    handed_in = []
    for learner in learners:
        folders = _folders(learner)
        handed_in += [_HandedIn(learner.name, folder.name, folder) for folder in folders]
        if not folders:
            handed_in.append(_HandedIn(learner.name, "", learner))
    return handed_in


def _folders(parent):
    return sorted(
        path for path in parent.iterdir()
        if path.is_dir() and not path.name.startswith(".") and path.name not in ("__MACOSX", "__pycache__")
    )


def _unknown(one, chapters):
    if one.name:
        return (
            f"{one.learner}/{one.name}: 没有这一章 · no such chapter; expected one of {', '.join(chapters)}"
        )
    found = ", ".join(sorted(path.name for path in one.folder.iterdir())[:5]) or "nothing"
    return f"{one.learner}: 没有章节文件夹 · no chapter's folder, only {found}; expected {', '.join(chapters)}"


def _grade(one, chapter, results, db_url):
    """Marks of one submission. Whatever is wrong with it ends here: it must not stop the class."""
    try:
        notebook = _submit(one, chapter, results / "submitted" / one.learner / chapter.name)
    except InputError as error:
        # Nothing to grade: what was graded before stays, in the gradebook and as the learner's marks.
        return _earlier_marks(results, db_url, chapter, one.learner, error) or _no_marks(one, chapter, error)
    for step in ("autograded", "feedback"):  # of an earlier run
        shutil.rmtree(results / step / one.learner / chapter.name, ignore_errors=True)
    try:
        _autograde(results, db_url, chapter, one.learner, notebook)
        marks = _marks(results, db_url, chapter, one.learner)
    except Exception as error:
        with open_gradebook(results, db_url) as gradebook, contextlib.suppress(MissingEntry):
            gradebook.remove_submission(chapter.name, one.learner)  # with an earlier run's scores
        known = isinstance(error, InputError)
        return _no_marks(one, chapter, error if known else f"{notebook}: {type(error).__name__}: {error}")
    with contextlib.suppress(Exception):  # a page that nbconvert cannot make costs no points
        run_converter(_FeedbackOne, results, db_url, chapter.name, learner=one.learner)
    return marks


def _no_marks(one, chapter, reason):
    return [
        Mark(one.learner, chapter.name, todo.grade_id, 0, todo.points, _one_line(str(reason)))
        for todo in chapter.todos
    ]


def _earlier_marks(results, db_url, chapter, learner, reason):
    """The marks of an earlier run, with the reason why they are not new; [] when there was none."""
    try:
        marks = _marks(results, db_url, chapter, learner)
    except (MissingEntry, FileNotFoundError):
        return []
    remark = f"{reason} · 仍是上次的成绩 · the earlier result stands: "
    return [mark._replace(reason=_one_line(remark + mark.reason)) for mark in marks]


def _submit(one, chapter, target):
    """Copy a submission to nbgrader's `submitted` folder, its notebook under the chapter's name.

    Returns the name that messages use for the notebook. Raises InputError where there is none to grade.
    """
    if one.folder.resolve() != target.resolve():
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for file in map(Path, find_all_files(str(one.folder), IGNORED)):
            # A link could name the instructor's own files, a pipe could block.
            if file.is_file() and not file.is_symlink():
                copy = target / file.relative_to(one.folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
    where = Path(one.learner, chapter.name)
    notebooks = sorted(path for path in target.iterdir() if path.suffix == ".ipynb")
    wanted = target / f"{chapter.name}.ipynb"
    if wanted not in notebooks:
        if (one.folder / wanted.name).is_symlink():
            raise InputError(f"{where / wanted.name}: 是链接而不是文件 · a link, not a file")
        if not notebooks:
            found = ", ".join(sorted(path.name for path in one.folder.iterdir())[:5]) or "nothing"
            raise InputError(f"{where}: 没有 notebook · no notebook, only {found}; expected {wanted.name}")
        if len(notebooks) > 1:
            raise InputError(
                f"{where}: 有几个 notebook · several notebooks, none named {wanted.name}: "
                f"{', '.join(path.name for path in notebooks)}"
            )
        # A browser or a platform renamed it ("Copy_of_…", "… (1)"): the only one is the one that is meant.
        shutil.copyfile(notebooks[0], wanted)
    name = where / (wanted if wanted in notebooks else notebooks[0]).name
    _read(wanted, name)
    return name


def _read(path, name):
    """The notebook in a file. Raises InputError, naming it `name`, when there is no notebook in it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{name}: 没有这个文件 · no such file") from None
    except OSError as error:
        raise InputError(f"{name}: 无法读取 · cannot be read: {error.strerror}") from None
    if not data.strip():
        raise InputError(f"{name}: 空文件 · the file is empty")
    try:
        json.loads(data)
    except ValueError as error:
        raise InputError(f"{name}: 文件不完整或已损坏 · the file is cut off or damaged: {error}") from None
    except RecursionError:
        raise InputError(f"{name}: 文件已损坏 · the file is damaged: nested too deeply") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nbformat repairs cell ids, and says so
            notebook = nbformat.reads(data.decode("utf-8"), as_version=4)
        return notebook if notebook.cells else _no_notebook(name)
    except InputError:
        raise
    except Exception:  # nbformat raises whatever a wrong structure makes it stumble over
        return _no_notebook(name)


def _no_notebook(name):
    raise InputError(f"{name}: 不是 Jupyter notebook，或没有单元格 · no Jupyter notebook, or one without cells")


def _chapter_of(path, notebook):
    chapters = load_chapters()
    found = {_grade_id(cell) for cell in notebook.cells}

    def hits(chapter):
        return len(found & {name for todo in chapter.todos for name in (todo.grade_id, *todo.tests)})

    best = max(chapters, key=lambda chapter: (chapter.name == path.stem, hits(chapter)), default=None)
    if best is None or not (best.name == path.stem or hits(best)):
        names = ", ".join(chapter.name for chapter in chapters)
        raise InputError(
            f"{path}: 看不出是哪一章 · the chapter cannot be told from its name or grade ids; expected one of {names}"
        )
    return best


def _grade_id(cell):
    metadata = cell.metadata.get("nbgrader")
    grade_id = metadata.get("grade_id") if isinstance(metadata, dict) else None
    return grade_id if isinstance(grade_id, str) else None


class _One(BaseConverter):
    """nbgrader's converter for one learner: finds the folder as named, where nbgrader takes a file pattern."""

    learner = Unicode()
    failure = Instance(Exception, allow_none=True)  # nbgrader's own exception says "see the log"

    def init_notebooks(self):
        folder = self._format_source(self.coursedir.assignment_id, self.learner)
        self.assignments = {folder: [os.path.join(folder, f"{self.coursedir.assignment_id}.ipynb")]}

    def convert_single_notebook(self, notebook_filename):
        try:
            super().convert_single_notebook(notebook_filename)
        except Exception as error:
            self.failure = error
            raise

    def start(self):
        try:
            super().start()
        except Exception as error:
            raise (self.failure or error) from None


class _AutogradeOne(_One, Autograde):
    pass


class _FeedbackOne(_One, GenerateFeedback):
    pass


def _autograde(root, db_url, chapter, learner, name):
    """Run nbgrader's autograder on one submitted notebook. Raises InputError, naming it, when it gives up."""
    with open_gradebook(root, db_url) as gradebook:
        _forget_scores(gradebook, chapter, learner)
    try:
        run_converter(_AutogradeOne, root, db_url, chapter.name, learner=learner)
    except DeadKernelError:
        raise InputError(f"{name}: {_DIED}") from None
    except UnresponsiveKernelError:
        raise InputError(f"{name}: {_STUCK}") from None
    except ValueError as error:  # TidyMetadata's
        raise InputError(f"{name}: {error}") from None


def _forget_scores(gradebook, chapter, learner):
    """An earlier run's scores must not stand in for test cells that the notebook no longer has."""
    try:
        grades = gradebook.find_submission_notebook(chapter.name, chapter.name, learner).grades
    except MissingEntry:
        return
    for grade in grades:
        grade.auto_score = None
    gradebook.db.commit()


def _marks(root, db_url, chapter, learner):
    """Marks of an autograded notebook: points from the gradebook, reasons from the test cells' outputs."""
    with open_gradebook(root, db_url) as gradebook:
        grades = gradebook.find_submission_notebook(chapter.name, chapter.name, learner).grades
        scores = {grade.name: grade.score for grade in grades}
    path = root / "autograded" / learner / chapter.name / f"{chapter.name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    cells = {_grade_id(cell): cell for cell in notebook.cells}
    marks = []
    for todo in chapter.todos:
        points = sum(scores.get(test, 0) for test in todo.tests)
        failing = [test for test, most in todo.tests.items() if scores.get(test, 0) < most]
        if failing:
            reason = _failure(todo.label, failing[0], cells.get(failing[0]))
        else:
            reason = _success(todo.label, [cells[test] for test in todo.tests if test in cells])
        marks.append(
            Mark(learner, chapter.name, todo.grade_id, points, todo.points, _one_line(reason))
        )
    return marks


def _failure(label, test, cell):
    """The verdict line of a failing test cell."""
    if cell is None:
        return f"[{label}] 缺少测试单元格 · the notebook lacks the test cell {test}"
    errors = [output for output in cell.outputs if output.output_type == "error"]
    timeouts = [error for error in errors if error.ename == "CellTimeoutError"]
    if timeouts:
        return f"[{label}] {timeouts[0].evalue}"
    if not errors:
        return f"[{label}] 人工评分 · graded by hand"
    line = errors[0].evalue
    return line if line.startswith("[") else f"[{label}] {errors[0].ename}: {line}"


def _success(label, cells):
    """`[T2] ok`, or the line with a remark that the learner should see."""
    lines = [
        line
        for cell in cells
        for output in cell.outputs if output.output_type == "stream"
        for line in output.text.splitlines()
    ]
    return next((line for line in lines if line.startswith(f"[{label}]") and _STAND_IN in line), f"[{label}] ok")


def _one_line(text):
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]} …"
