"""A notebook that Colab, Kaggle, VS Code, JupyterLab or ModelScope saved gets the marks of the file that it was."""
import functools
import json
import tempfile
from pathlib import Path

import nbformat
import pytest
from grading import chapter_named, in_gradebook, in_marks_csv
from hypothesis import given, settings
from hypothesis import strategies as st
from writers import WRITERS, Layout, as_bytes, worked

from autograde import build, grade, intake
from autograde.chapter import load_chapters, nbgrader, solved
from autograde.repair import repair
from autograde.sandbox import sandbox_available
from autograde.tests.repairing import CHAPTERS

BASE = Layout()
LAYOUTS = st.builds(
    Layout, indent=st.sampled_from([None, 0, 1, 2, 4]), order=st.sampled_from(["own", "sorted", "reversed"]),
    lines=st.booleans(), end=st.sampled_from(["", "\n", "\n\n"]), newline=st.sampled_from(["\n", "\r\n"]),
    bom=st.booleans(), ascii=st.booleans(),
)
RIGHT, WRONG, UNFINISHED = "right", "wrong", "unfinished"
# One learner's TODOs in order; every chapter has three at least.
MIXES = [(RIGHT, WRONG, UNFINISHED, RIGHT), (UNFINISHED, RIGHT, RIGHT, WRONG), (WRONG, UNFINISHED, RIGHT, UNFINISHED)]
NAMES = ["{}.ipynb", "Copy of {}.ipynb", "{} (1).ipynb", "{}-Copy1.ipynb", "{}.ipynb.txt", "“{}”的副本.ipynb"]


@functools.cache
def made(name, language):
    """(text of the released notebook, {grade id: reference}) of a chapter; building takes half a second."""
    chapter = chapter_named(name)
    references = {nbgrader(cell)["grade_id"]: solved(cell.source)
                  for cell in build.source_notebook(chapter, language).cells if nbgrader(cell).get("solution")}
    return build.text(build.release_notebook(chapter, language)), references


def learners(chapter, mix, language="zh"):
    """The notebook (dict) that a learner ran with these answers, as JupyterLab wrote it."""
    released, references = made(chapter.name, language)
    notebook, answers = json.loads(released), {}
    for todo, state in zip(chapter.todos, mix):
        wrong = next(one for one in chapter.variants if one.todo == todo.grade_id and one.kind == "wrong")
        answers[todo.grade_id] = {RIGHT: references[todo.grade_id], WRONG: wrong.source, UNFINISHED: None}[state]
    for cell in notebook["cells"]:
        answer = answers.get(cell["metadata"].get("nbgrader", {}).get("grade_id"))
        if answer:
            cell["source"] = answer.splitlines(keepends=True)
    return worked(notebook)


def taken_in(folder, name, data):
    """(chapter's name, its Repaired form) of one file as intake and repair hand it to the grader."""
    path = Path(folder) / "li" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    (found,) = intake.find_submissions(folder, chapters=list(CHAPTERS.values()))
    path.unlink()
    (candidate,) = found.candidates
    assert found.problems == () and found.learner == "li"
    return found.chapter, repair(next(one for one in CHAPTERS.values() if one.name == found.chapter), candidate)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("chapter", CHAPTERS.values(), ids=CHAPTERS)
def test_what_was_written_is_a_notebook_and_still_says_what_the_learner_wrote(chapter, writer):
    write, layout = WRITERS[writer]
    plain = learners(chapter, MIXES[0])
    written = json.loads(as_bytes(write(plain), layout))
    nbformat.validate(nbformat.from_dict(written))
    assert written["metadata"] != plain["metadata"] or written["cells"] != plain["cells"]
    sources = [["".join(cell["source"]) for cell in notebook["cells"]] for notebook in (written, plain)]
    assert sources[0] == sources[1]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("chapter", CHAPTERS.values(), ids=CHAPTERS)
def test_the_grader_is_handed_the_same_answers_and_has_nothing_to_repair(chapter, writer, tmp_path):
    write, layout = WRITERS[writer]
    for mix in MIXES:
        plain = learners(chapter, mix)
        wanted = taken_in(tmp_path, f"{chapter.name}.ipynb", as_bytes(plain, BASE))
        assert wanted[1].notes == () and len(wanted[1].cells) > 2 * len(chapter.todos)
        assert taken_in(tmp_path, "Untitled.ipynb", as_bytes(write(plain), layout)) == wanted


@pytest.mark.parametrize("chapter", CHAPTERS.values(), ids=CHAPTERS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_layout_and_file_name_of_any_writer(chapter, data):
    mix = data.draw(st.sampled_from(MIXES))
    notebook = plain = learners(chapter, mix, data.draw(st.sampled_from(["zh", "en"])))
    for writer in data.draw(st.lists(st.sampled_from(sorted(WRITERS)), min_size=1, max_size=3)):
        for cell in notebook["cells"]:  # the next program gives ids to cells without one
            cell.setdefault("id", f"{len(str(cell)):08x}")
        notebook = WRITERS[writer][0](notebook)
    if data.draw(st.booleans()):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell.update(outputs=[], execution_count=None)
    lost = data.draw(st.booleans())
    if lost:
        for cell in notebook["cells"]:
            cell["metadata"].pop("nbgrader", None)
    layout = data.draw(LAYOUTS)
    name = data.draw(st.sampled_from(NAMES)).format(chapter.name)
    with tempfile.TemporaryDirectory() as folder:
        wanted = taken_in(folder, "x.ipynb", as_bytes(plain, BASE))
        found, repaired = taken_in(folder, name, as_bytes(notebook, layout))
    assert (found, repaired.cells, repaired.problems) == (wanted[0], wanted[1].cells, wanted[1].problems)
    assert lost or repaired.notes == ()


@pytest.mark.slow
@pytest.mark.skipif(bool(sandbox_available()), reason=sandbox_available() or "")
@pytest.mark.usefixtures("alembic_asked_once")
def test_a_class_of_all_writers_gets_the_marks_that_the_answers_deserve(tmp_path):
    chapters, wanted = load_chapters(), {}
    for number, (writer, (write, layout)) in enumerate(WRITERS.items()):
        for chapter in chapters:
            mix = MIXES[number % len(MIXES)]
            path = tmp_path / "class" / f"learner{number}" / chapter.name / NAMES[number % len(NAMES)].format(
                chapter.name)
            path.parent.mkdir(parents=True)
            path.write_bytes(as_bytes(write(learners(chapter, mix)), layout))
            for todo, state in zip(chapter.todos, mix):
                wanted[f"learner{number}", chapter.name, todo.grade_id] = (writer, state, todo.points)
    outcome = grade.grade_class(tmp_path / "class", tmp_path / "results")
    assert len(outcome) == len(WRITERS) * len(chapters)
    for one in outcome:
        for mark in one.marks:
            writer, state, points = wanted.pop((one.learner, one.chapter.name, mark.todo))
            full = {RIGHT: points, UNFINISHED: 0}.get(state)
            assert mark.points == full or state == WRONG and mark.points < points, (writer, mark)
        assert one.graded.notes == () and one.graded.problem == ""
    assert wanted == {}
    assert in_gradebook(tmp_path / "results") == in_marks_csv(tmp_path / "results")
