"""Make notebooks from chapters: source (nbgrader's), release (the learner's) and solved ones.

All are pure functions of the chapter script, the toolkit and the repository address: cell ids come from
grade ids or content, so a build is the same to the byte wherever it runs.
"""
import functools
import hashlib
import json
import os

import nbformat
from nbclient import NotebookClient
from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import SaveCells
from traitlets.config import Config

from autograde import inline
from autograde.badges import filled
from autograde.chapter import (
    LANGUAGES,
    copy_cell,
    in_language,
    is_answer,
    load_chapters,
    nbgrader,
    solved,
)
from autograde.errors import InputError
from autograde.paths import COURSE

CODE_STUB = "# 在这里写你的代码 · write your code here"
CHECK_NAMES = ("case", "check", "hidden_rng")  # what test cells may use of the tools
TOOLS_TITLE = "课程工具，先运行这一格 · course tools, run this cell first"
PACKAGES = ("numpy", "matplotlib", "torch")  # what the tools may use beside the standard library and IPython


def source_notebook(chapter, language):
    """The chapter as nbgrader's source: one language, toolkit inlined, solutions and hidden tests in it."""
    return _notebook([cell for cell, original in _source_cells(chapter, language) if not is_answer(original)])


def release_notebook(chapter, language):
    """What learners get: the source through nbgrader's own preprocessors, as `generate_assignment` does."""
    config = Config()
    config.ClearSolutions.code_stub = {"python": CODE_STUB}
    notebook, resources = source_notebook(chapter, language), {}
    for preprocessor in GenerateAssignment().preprocessors:
        if preprocessor is not SaveCells:  # it writes to the gradebook, nothing to the notebook
            notebook, resources = preprocessor(config=config).preprocess(notebook, resources)
    return notebook


def solved_notebook(chapter, language):
    """The learner's notebook with every TODO solved and the think questions answered, not yet run."""
    release = iter(release_notebook(chapter, language).cells)
    cells = []
    for cell, original in _source_cells(chapter, language, for_solved=True):
        if not is_answer(original):
            released = next(release)
            if cell.cell_type == "markdown":
                released.source = cell.source
            if nbgrader(cell).get("solution"):
                released.source = solved(cell.source)
            if nbgrader(cell).get("grade"):
                del released.metadata["tags"]  # nothing may fail here
            cell = released
        cells.append(cell)
    return _notebook(cells)


def executed(notebook, folder):
    """The notebook after a run of all its cells in `folder`, with its outputs. Raises CellExecutionError.

    Traces are synthetic there: downloaded ones would give other outputs than those that tests compare.
    """
    runner = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--IPKernelApp.log_level=ERROR"],  # it warns of its local sockets
        record_timing=False, coalesce_streams=True,  # the same outputs on every run
        # Without widget state, readers without a kernel show a panel's still picture and no dead sliders.
        store_widget_state=False,
    )
    runner.execute(env={**os.environ, "COURSE_OFFLINE": "1"})
    for cell in notebook.cells:
        if cell.cell_type == "code":  # matplotlib may say on stderr that it looks for fonts, which is of this machine
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for number, output in enumerate(cell.get("outputs", [])):
            view = output.get("data", {}).get("application/vnd.jupyter.widget-view+json")
            if view:  # its id was random, and names nothing any more
                view["model_id"] = hashlib.sha256(f"{cell.id} {number}".encode()).hexdigest()[:32]
    return notebook


def course_files():
    """{path: text} of everything under `course/`."""
    return {
        COURSE / language / chapter.name / f"{chapter.name}.ipynb": text(release_notebook(chapter, language))
        for chapter in load_chapters()
        for language in LANGUAGES
    }


def write_solved(folder):
    """Run the solved notebooks; write them with outputs as `folder/<lang>/<chapter>/<chapter>.ipynb`."""
    for chapter in load_chapters():
        for language in LANGUAGES:
            path = folder / language / chapter.name / f"{chapter.name}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text(executed(solved_notebook(chapter, language), path.parent)), encoding="utf-8")


def text(notebook):
    """A notebook as its file holds it."""
    return nbformat.writes(notebook) + "\n"


def _source_cells(chapter, language, for_solved=False):
    """(cell, cell of the script) for every cell in this language, answers among them."""
    for original in chapter.cells:
        if not in_language(original, language):
            continue
        cell = copy_cell(original)
        if cell.cell_type == "code" and _wanted(chapter, original):
            _inline_helpers(cell, chapter, original)
        elif nbgrader(cell).get("grade"):
            _wrap_check(cell, chapter)
        elif cell.cell_type == "markdown":
            cell.source = filled(cell.source, chapter.name, language, solved=for_solved)
        yield cell, original


def _wanted(chapter, original):
    try:
        wanted = inline.toolkit_imports(original.source)
    except InputError as error:
        raise InputError(f"{chapter.where(original)}: {error}") from None
    if wanted:
        wanted.setdefault("checks", []).append("declare_todos")
    return wanted


def _inline_helpers(cell, chapter, original):
    """Turn the import cell into the locked cell that holds the helpers' source."""
    wanted = tuple((module, tuple(names)) for module, names in _wanted(chapter, original).items())
    names = tuple(name for names in inline.toolkit_imports(original.source).values() for name in names)
    try:
        cell.source = _tools(wanted, names, declaration(chapter))
    except InputError as error:
        raise InputError(f"{chapter.where(original)}: {error}") from None
    cell.metadata["tags"] = ["toolkit"]
    cell.metadata["nbgrader"] = {
        "grade": False, "grade_id": "toolkit", "locked": True, "schema_version": 3, "solution": False, "task": False,
    }
    _fold(cell, TOOLS_TITLE)


@functools.cache  # it is the same in every language, and slow
def _tools(wanted, names, declared):
    helpers = inline.inlined({module: list(names) for module, names in wanted})
    packages = [name for name in PACKAGES if name in inline.imported(helpers)]
    if packages:
        look = inline.inlined({"packages": ["require_packages"]})
        helpers = f"{look}\n\n\nrequire_packages({json.dumps(packages)})\n\n\n{helpers}"
    return inline.as_module(f"{helpers}\n\n\n{declared}", names)


def _fold(cell, title):
    """Show a cell as its title: JupyterLab hides the source behind its first line, Colab behind the form's title."""
    cell.source = f"#@title {title}\n{cell.source}"
    cell.metadata["cellView"] = "form"
    cell.metadata["jupyter"] = {"source_hidden": True}


def _wrap_check(cell, chapter):
    """A check leaves no names in the learner's notebook, says its title when folded, and does not stop "Run All"."""
    test_id = nbgrader(cell)["grade_id"]
    cell.source = inline.as_function(f"_{test_id}", cell.source, CHECK_NAMES)
    cell.metadata["tags"] = ["raises-exception"]
    _fold(cell, _check_title(chapter, test_id))


def _check_title(chapter, test_id):
    todo = next(todo for todo in chapter.todos if test_id in todo.tests)
    aspect = test_id.removeprefix(f"test_{todo.grade_id}").strip("_").replace("_", " ")
    return f"[{todo.label}] 检查，运行这一格 · check, run this cell{': ' if aspect else ''}{aspect}"


def declaration(chapter):
    """The call that tells the inlined checks which test cells and points belong to which TODO."""
    todos = {todo.label: {"title": todo.title, "tests": todo.tests} for todo in chapter.todos}
    return f"declare_todos({json.dumps(todos, indent=4)})"


def _notebook(cells):
    notebook = nbformat.v4.new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
    )
    taken = set()
    for cell in notebook.cells:
        cell.id = nbgrader(cell).get("grade_id") or hashlib.sha256(cell.source.encode()).hexdigest()[:12]
        while cell.id in taken:  # two cells with the same text
            cell.id += "-"
        taken.add(cell.id)
    return notebook
