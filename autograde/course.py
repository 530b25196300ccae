"""nbgrader's course folder: its configuration, its source and release notebooks, its gradebook.

The folder (`autograde/results/` unless another is named) is an ordinary nbgrader course, so that
`nbgrader autograde`, `generate_feedback`, `formgrader` and `export` work in it as they are.
"""
import contextlib
import logging
import os
import sysconfig
import warnings
from pathlib import Path

from nbgrader.api import Gradebook
from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory
from sqlalchemy.exc import SQLAlchemyError
from traitlets.config import Config

from autograde import build
from autograde.chapter import load_chapters
from autograde.errors import InputError

CELL_TIMEOUT_S = 60  # a cold import of torch takes 10 to 20 s on a busy machine
SOURCE_LANGUAGE = "en"  # grade ids and code are the same in all languages
_LOCAL_CONFIG = '''\
# Written by `python -m autograde`, so that nbgrader's own commands work in this folder.
from pathlib import Path

from autograde.course import course_config

get_config().merge(course_config(Path(__file__).parent))  # noqa: F821
'''


def course_config(root, db_url=None):
    """nbgrader's configuration for the course folder `root`, for its commands and for calls from Python.

    `db_url` is the gradebook's SQLAlchemy address; without it nbgrader uses `root/gradebook.db`.
    """
    config = Config()
    config.CourseDirectory.root = str(Path(root).resolve())
    if db_url:
        config.CourseDirectory.db_url = db_url
        config.CourseDirectory.course_id = "course"  # a database server, unlike SQLite, wants the name of one
    # nbgrader's default exchange is a system folder; formgrader warns where there is none.
    config.Exchange.root = str(Path(root).resolve() / "exchange")
    config.ClearSolutions.code_stub = {"python": build.CODE_STUB}
    config.Execute.timeout = CELL_TIMEOUT_S
    config.Execute.error_on_timeout = {
        "ename": "CellTimeoutError",
        "evalue": f"stopped after {CELL_TIMEOUT_S} s · 运行超过 {CELL_TIMEOUT_S} 秒，已停止",
        "traceback": [f"CellTimeoutError: stopped after {CELL_TIMEOUT_S} s"],
    }
    # No history file of the user's, no warning of ipykernel's about its local sockets on the terminal.
    config.Execute.extra_arguments = ["--HistoryManager.hist_file=:memory:", "--IPKernelApp.log_level=ERROR"]
    # Names instead of classes: formgrader shows this configuration as text.
    config.Autograde.sanitize_preprocessors = [
        "nbgrader.preprocessors.ClearOutput",
        "autograde.preprocessors.TidyMetadata",
        "nbgrader.preprocessors.OverwriteKernelspec",
        "nbgrader.preprocessors.OverwriteCells",
        "nbgrader.preprocessors.CheckCellMetadata",
    ]
    config.Autograde.autograde_preprocessors = [
        "nbgrader.preprocessors.Execute",
        "autograde.preprocessors.StderrToStdout",
        "nbgrader.preprocessors.IgnorePattern",
        "nbconvert.preprocessors.ClearMetadataPreprocessor",
        "nbgrader.preprocessors.LimitOutput",
        "nbgrader.preprocessors.SaveAutoGrades",
        "nbgrader.preprocessors.AssignLatePenalties",
        "nbgrader.preprocessors.CheckCellMetadata",
    ]
    config.GenerateFeedback.preprocessors = [
        "nbgrader.preprocessors.GetGrades",
        "autograde.preprocessors.HideTests",
        "nbgrader.preprocessors.ClearMarkScheme",
        "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
    ]
    # A submission's Markdown and HTML output are shown to others, by formgrader too.
    config.HTMLExporter.sanitize_html = True
    config.HTMLExporter.filters = {
        "markdown2html": "autograde.preprocessors.clean_markdown",
        "clean_html": "autograde.preprocessors.clean_html",
    }
    return config


def prepare_course(root, db_url=None, chapters=None):
    """Make `root` an nbgrader course with these chapters (all of them by default), where it is not yet.

    Only chapters whose source changed are made anew. Raises InputError when the folder or the gradebook
    cannot be used.
    """
    root = Path(root).resolve()
    chapters = load_chapters() if chapters is None else chapters
    try:
        (root / "exchange").mkdir(parents=True, exist_ok=True)  # formgrader makes none
        write_atomically(root / "nbgrader_config.py", _LOCAL_CONFIG)
    except OSError as error:
        raise InputError(f"{root}: cannot be written as a results folder: {error.strerror}") from None
    with open_gradebook(root, db_url) as gradebook:
        known = {assignment.name for assignment in gradebook.assignments}
    for chapter in chapters:
        source = root / "source" / chapter.name / f"{chapter.name}.ipynb"
        release = root / "release" / chapter.name / f"{chapter.name}.ipynb"
        text = build.text(build.source_notebook(chapter, SOURCE_LANGUAGE))
        same = source.exists() and source.read_text(encoding="utf-8") == text
        if chapter.name in known and same and release.exists():
            continue
        release.unlink(missing_ok=True)  # nbgrader writes it last: what was broken off is prepared again
        write_atomically(source, text)
        _generate(root, db_url, chapter)


def open_gradebook(root, db_url=None):
    """nbgrader's gradebook of the course folder, made where there is none; use it in a `with`."""
    coursedir = CourseDirectory(config=course_config(root, db_url))
    path = os.environ.get("PATH", "")
    # nbgrader calls the command `alembic` for a new gradebook; a Python run by its path has no scripts on PATH.
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), path])
    try:
        return Gradebook(coursedir.db_url, coursedir.course_id)
    except (SQLAlchemyError, ImportError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(f"--db: the gradebook cannot be opened: {reason}") from None
    finally:
        os.environ["PATH"] = path


def write_atomically(path, text):
    """Write a text file so that readers see the old one or the new one, never a part.

    One process writes it at a time. What it leaves when it is killed goes with the next write.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _generate(root, db_url, chapter):
    with open_gradebook(root, db_url) as gradebook:
        _forget_other_cells(gradebook, chapter)
    config = course_config(root, db_url)
    coursedir = CourseDirectory(config=config, assignment_id=chapter.name)
    converter = GenerateAssignment(coursedir=coursedir, config=config, force=True)
    with _silent(converter.log), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SQLAlchemy's, about nbgrader's own queries
        converter.start()


def _forget_other_cells(gradebook, chapter):
    """nbgrader cannot change the cells of a chapter that has submissions: drop these, to be graded again."""
    for assignment in gradebook.assignments:
        if assignment.name != chapter.name or not assignment.submissions:
            continue
        old = {cell.name for notebook in assignment.notebooks for cell in notebook.source_cells}
        source = build.source_notebook(chapter, SOURCE_LANGUAGE)
        new = {cell.metadata.nbgrader.grade_id for cell in source.cells if "nbgrader" in cell.metadata}
        if old == new:
            continue
        notebooks = [notebook for submission in assignment.submissions for notebook in submission.notebooks]
        by_hand = [n for n in notebooks if any(g.manual_score is not None for g in n.grades)
                   or any(c.manual_comment for c in n.comments)]
        if by_hand:
            raise InputError(
                f"{chapter.name}: the chapter has other cells than when {len(by_hand)} submissions in this "
                "gradebook were graded by hand; grade into another results folder"
            )
        gradebook.remove_assignment(chapter.name)


@contextlib.contextmanager
def _silent(logger):
    others, propagate = logger.handlers[:], logger.propagate
    logger.handlers[:], logger.propagate = [logging.NullHandler()], False
    try:
        yield
    finally:
        logger.handlers[:], logger.propagate = others, propagate
