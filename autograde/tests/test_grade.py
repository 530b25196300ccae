"""Grading: points and reasons from nbgrader, for good, wrong, broken and odd submissions."""
import csv
import functools
import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import TINY
from nbgrader import api as nbgrader_api
from nbgrader.apps import NbGraderAPI
from traitlets.config import PyFileConfigLoader

from autograde import build, chapter, course
from autograde.__main__ import main
from autograde.chapter import load_chapters, nbgrader
from autograde.course import open_gradebook, prepare_course
from autograde.errors import InputError
from autograde.grade import Mark, check_notebook, grade_class
from autograde.report import print_table, write_feedback_pages, write_marks_csv
from autograde.samples import sample_submissions

TIERS, POOLS = "39a_inference_fallback_and_tiers", "39b_hetero_pd_and_serving_tiers"
FULL = {TIERS: {"tiers": 6, "policy": 6, "outcome": 6}, POOLS: dict.fromkeys(
    ("classify", "handoff", "capability", "routing"), 6)}
# What each learner loses against full marks in the chapters handed in.
SAMPLE_CLASS = {
    "alice-lin": {TIERS: {}, POOLS: {}},
    "王小明": {TIERS: {}, POOLS: {}},
    "bruno": {POOLS: {}},
    "陈思": {TIERS: dict.fromkeys(FULL[TIERS], 0), POOLS: dict.fromkeys(FULL[POOLS], 0)},
    "dora.okafor": {TIERS: {"policy": 0, "outcome": 0}, POOLS: {"capability": 0, "routing": 0}},
    "李雷": {TIERS: {"policy": 4}, POOLS: {"handoff": 0}},
    "emil": {POOLS: {"classify": 0}},
    "fatima": {POOLS: {}},
    "gao yu 高宇": {TIERS: dict.fromkeys(FULL[TIERS], 0), POOLS: {}},
    "hugo": {POOLS: dict.fromkeys(FULL[POOLS], 0)},
    "ines": {TIERS: {}},
    "赵敏": {POOLS: {"capability": 2}},
}


@pytest.fixture(autouse=True, scope="session")
def alembic_asked_once():
    """nbgrader starts a process of some seconds for each new gradebook, to ask for a constant."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nbgrader.api.get_alembic_version", functools.cache(nbgrader_api.get_alembic_version))
        yield


# The sample class, graded once with the real chapters.

@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """(marks, results folder) of the sample class."""
    submissions = tmp_path_factory.mktemp("class")
    for name, data in sample_submissions().items():
        path = submissions / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    results = tmp_path_factory.mktemp("results")
    return grade_class(submissions, results), results


def reasons(marks, learner, chapter_name):
    return {m.todo: m.reason for m in marks if (m.learner, m.chapter) == (learner, chapter_name)}


@pytest.mark.slow
def test_the_sample_class_gets_the_marks_it_was_made_for(sample):
    marks, _ = sample
    got = {}
    for mark in marks:
        got.setdefault(mark.learner, {}).setdefault(mark.chapter, {})[mark.todo] = mark.points
        assert mark.max_points == FULL[mark.chapter][mark.todo]
    assert got == {
        learner: {name: FULL[name] | lost for name, lost in chapters.items()}
        for learner, chapters in SAMPLE_CLASS.items()
    }


@pytest.mark.slow
def test_reasons_say_what_the_learner_needs_to_know(sample):
    marks, _ = sample
    assert set(reasons(marks, "alice-lin", POOLS).values()) == {f"[T{n}] ok" for n in (1, 2, 3, 4)}
    assert set(reasons(marks, "陈思", TIERS).values()) == {f"[T{n}] not done yet · 尚未完成" for n in (1, 2, 3)}
    assert "bits, not bytes" in reasons(marks, "李雷", POOLS)["handoff"]
    assert "a syntax error" in reasons(marks, "emil", POOLS)["classify"]
    # A wrong TODO 3 does not cost TODO 4 its points, and the verdict says so.
    assert "reference answers of evaluate_pool_capability" in reasons(marks, "赵敏", POOLS)["routing"]
    assert all("cut off" in r and f"{TIERS}.ipynb" in r for r in reasons(marks, "gao yu 高宇", TIERS).values())
    assert all("no notebook, only README.txt" in r for r in reasons(marks, "hugo", POOLS).values())


@pytest.mark.slow
def test_stock_nbgrader_gives_the_same_scores_in_the_folder(sample):
    marks, results = sample
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def nbgrader_command(*arguments):
        command = [sys.executable, "-m", "nbgrader", *arguments]
        done = subprocess.run(command, cwd=results, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    with open_gradebook(results) as gradebook:  # or nbgrader would only show what we put there
        for learner in ("李雷", "fatima"):
            for grade in gradebook.find_submission_notebook(POOLS, POOLS, learner).grades:
                grade.auto_score = None
        gradebook.db.commit()
    for learner in ("李雷", "fatima"):
        nbgrader_command("autograde", POOLS, "--student", learner, "--force")
        nbgrader_command("generate_feedback", POOLS, "--student", learner, "--force")
        assert not leaked(results / "feedback" / learner / POOLS / f"{POOLS}.html", POOLS)
    nbgrader_command("export", "--to", "grades.csv")
    with open(results / "grades.csv", encoding="utf-8", newline="") as file:
        exported = {(row["student_id"], row["assignment"]): float(row["score"]) for row in csv.DictReader(file)}
    ours = {}
    for mark in marks:
        key = (mark.learner, mark.chapter)
        ours[key] = ours.get(key, 0) + mark.points
    assert {key: score for key, score in exported.items() if score} == {k: s for k, s in ours.items() if s}


@pytest.mark.slow
def test_formgrader_finds_assignments_and_graded_submissions(sample):
    _, results = sample
    api = NbGraderAPI(config=course.course_config(results))
    assert {a["name"]: a["max_score"] for a in api.get_assignments()} == {TIERS: 18, POOLS: 24}
    bruno = next(s for s in api.get_submissions(POOLS) if s["student"] == "bruno")
    assert bruno["autograded"] and not bruno["needs_manual_grade"] and bruno["score"] == 24


@pytest.mark.slow
def test_no_page_holds_a_hidden_test(sample):
    marks, results = sample
    pages = list((results / "feedback").rglob("*.html"))
    notebooks = {(m.learner, m.chapter) for m in marks if m.reason.startswith("[T")}
    assert len(pages) == len(SAMPLE_CLASS) + len(notebooks)
    for page in pages:
        name = page.stem if page.stem != "index" else POOLS
        assert leaked(page, name) == []


def leaked(page, chapter_name):
    """Lines of hidden tests that a page shows."""
    shown = html.unescape(re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8")))
    return [line for line in hidden_lines(chapter_name) if line in shown]


@functools.cache
def hidden_lines(chapter_name):
    """Lines of the chapter's hidden tests that stand in no learner's notebook."""
    source, release = (
        [line.strip() for cell in make(by_name(chapter_name), "en").cells if nbgrader(cell).get("grade")
         for line in cell.source.split("\n")]
        for make in (build.source_notebook, build.release_notebook)
    )
    hidden = [line for line in source if len(line) > 12 and line not in "\n".join(release)]
    assert len(hidden) > 10
    return hidden


def by_name(name):
    return next(found for found in load_chapters() if found.name == name)


# Odd submissions, with a tiny chapter so that each takes a second.

DOUBLING = "01_doubling"
RIGHT = "def double(number):\n    return 2 * number"


@pytest.fixture
def tiny_course(tmp_path, monkeypatch):
    """The tiny chapter is the only one; returns a function that writes its script."""
    folder = tmp_path / "solutions"
    folder.mkdir()
    monkeypatch.setattr(chapter, "SOLUTIONS", folder)

    def write(text=TINY):
        (folder / f"{DOUBLING}.py").write_text(text, encoding="utf-8")
    write()
    return write


@pytest.fixture
def hand_in(tmp_path, tiny_course):
    """hand_in(learner, answer or file text, file name): write a submission; returns the class's folder."""
    def write(learner, answer, file=f"{DOUBLING}.ipynb", folder=DOUBLING):
        path = tmp_path / "class" / learner / folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(answer if isinstance(answer, str) else build.text(answer), encoding="utf-8")
        return tmp_path / "class"
    return write


def answered(source):
    notebook = build.release_notebook(load_chapters()[0], "en")
    next(cell for cell in notebook.cells if cell.id == "double").source = source
    return notebook


def verdicts(marks):
    return {mark.learner: (mark.points, mark.reason) for mark in marks}


@pytest.mark.slow
def test_odd_submissions_are_graded_or_listed(hand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(course, "CELL_TIMEOUT_S", 2)
    twice, stripped, no_test = answered(RIGHT), answered(RIGHT), answered(RIGHT)
    twice.cells += [nbformat.from_dict(dict(cell, id=f"{cell.id}-2")) for cell in twice.cells if nbgrader(cell)]
    for cell in stripped.cells:
        cell.metadata.pop("nbgrader", None)
    no_test.cells = [cell for cell in no_test.cells if not nbgrader(cell).get("grade")]
    noisy = (
        "import logging, os, sys, warnings\nlogging.basicConfig()\n\ndef double(number):\n"
        "    warnings.warn('old'), logging.warning('slow'), os.write(2, b'from C'), sys.__stderr__.flush()\n"
        "    return 2 * number"
    )
    for learner, notebook in {
        "noisy": answered(noisy), "twice": twice, "stripped": stripped, "no test": no_test,
        "王 [1]*.?": answered(RIGHT), "loop": answered("def double(number):\n    while True: pass"),
        "dies": answered("import os\ndef double(number):\n    os._exit(3)"),
        "empty": "", "list": "[1, 2]", "no cells": '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
    }.items():
        submissions = hand_in(learner, notebook)
    hand_in("copy", answered(RIGHT), f"Copy_of_{DOUBLING}.ipynb")
    hand_in("two", answered(RIGHT), "a.ipynb")
    hand_in("two", answered(RIGHT), "b.ipynb")
    hand_in("other chapter", "", folder="77_nope")
    (submissions / "nothing").mkdir()
    link = submissions / "link" / DOUBLING / f"{DOUBLING}.ipynb"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "results" / "source" / DOUBLING / f"{DOUBLING}.ipynb")

    marks = grade_class(submissions, tmp_path / "results")
    got = verdicts(marks)
    assert {learner for learner, (points, _) in got.items() if points} == {"noisy", "twice", "王 [1]*.?", "copy"}
    assert all(points == 2 and reason == "[T1] ok" for points, reason in got.values() if points)
    for learner, part in {
        "stripped": "no cell carries the course's grading metadata", "no test": "lacks the test cell test_double",
        "loop": "[T1] stopped after 2 s", "dies": "Python died", "empty": "the file is empty",
        "list": "no Jupyter notebook", "no cells": "no Jupyter notebook", "two": "none named 01_doubling.ipynb",
        "other chapter": "no such chapter; expected one of 01_doubling", "nothing": "no chapter's folder",
        "link": "a link, not a file",
    }.items():
        assert part in got[learner][1] and "\n" not in got[learner][1]
    assert [(m.todo, m.max_points) for m in marks if m.learner == "other chapter"] == [("", 0)]
    # The file that could not be read is kept where nbgrader keeps submissions.
    assert (tmp_path / "results" / "submitted" / "list" / DOUBLING / f"{DOUBLING}.ipynb").read_text() == "[1, 2]"

    # A regrade from nbgrader's own folder gives the same, counts nothing twice and loses no file.
    again = grade_class(tmp_path / "results" / "submitted", tmp_path / "results")
    assert set(again) == {mark for mark in marks if mark.learner not in ("link", "nothing", "other chapter")} | {
        mark for mark in again if mark.learner == "link"
    }


@pytest.mark.slow
def test_a_worse_second_submission_replaces_the_first(hand_in, tmp_path):
    results = tmp_path / "results"
    submissions = hand_in("ann", answered(RIGHT))
    assert verdicts(grade_class(submissions, results))["ann"] == (2, "[T1] ok")
    no_test = answered(RIGHT)
    no_test.cells = [cell for cell in no_test.cells if not nbgrader(cell).get("grade")]
    hand_in("ann", no_test)
    assert verdicts(grade_class(submissions, results))["ann"][0] == 0


@pytest.mark.slow
def test_an_unreadable_second_submission_leaves_the_first_one_s_result(hand_in, tmp_path):
    results = tmp_path / "results"
    submissions = hand_in("ann", answered(RIGHT))
    hand_in("bo", "{")
    grade_class(submissions, results)
    hand_in("ann", "{")
    got = verdicts(grade_class(submissions, results))
    assert (got["ann"][0], got["bo"][0]) == (2, 0)
    assert "cut off or damaged" in got["ann"][1] and "earlier result stands: [T1] ok" in got["ann"][1]
    assert (results / "feedback" / "ann" / DOUBLING / f"{DOUBLING}.html").exists()
    with open_gradebook(results) as gradebook:
        assert gradebook.find_submission(DOUBLING, "ann").score == 2


@pytest.mark.slow
def test_pages_run_no_script_of_a_learner(hand_in, tmp_path):
    notebook = answered(RIGHT)
    attack = "<script>alert('from the learner')</script> <img src=x onerror=alert(1)>"
    notebook.cells.append(nbformat.v4.new_markdown_cell(f"{attack}\n\n[link](javascript:alert(1))\n\n> quoted `a<b`"))
    notebook.cells.append(nbformat.v4.new_code_cell(
        f"from IPython.display import HTML, Javascript, display\ndisplay(HTML({attack!r}), Javascript('alert(2)'))"
    ))
    # A marker of hidden tests in a learner's own text must not break the page.
    notebook.cells.append(nbformat.v4.new_markdown_cell("### BEGIN HIDDEN TESTS"))
    submissions = hand_in("<script>alert('name')</script>".replace("/", "∕"), notebook)
    grade_class(submissions, tmp_path / "results")
    pages = list((tmp_path / "results" / "feedback").rglob("*.html"))
    assert len(pages) == 2
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "<script>alert" not in text and 'href="javascript' not in text
        assert not re.search(r"<img[^>]*onerror", text) and "alert(2)\n" not in text
    assert "<code>a&lt;b</code>" in max(pages, key=lambda page: page.stat().st_size).read_text(encoding="utf-8")


@pytest.mark.slow
def test_check_gives_one_learner_the_same_lines(hand_in, tmp_path, capsys):
    path = hand_in("ann", answered("def double(number):\n    return number ** 2"), "renamed.ipynb")
    path = path / "ann" / DOUBLING / "renamed.ipynb"
    assert main(["check", str(path)]) == 0
    assert "0/2 double: [T1] got 9, expected 6 : squared · double(3)" in capsys.readouterr().out
    path.write_text("{", encoding="utf-8")
    assert main(["check", str(path)]) == 2
    assert f"{path}: " in capsys.readouterr().err
    path.write_text(json.dumps(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])), encoding="utf-8")
    with pytest.raises(InputError, match="cannot be told from its name or grade ids; expected one of 01_doubling"):
        check_notebook(path)


def test_bad_input_leaves_earlier_results_alone(hand_in, tmp_path, capsys):
    results = tmp_path / "results"
    results.mkdir()
    (results / "marks.csv").write_text("earlier", encoding="utf-8")
    (tmp_path / "nobody").mkdir()
    hand_in("ann", "", folder="77_nope")
    for arguments, part in [
        (["missing"], "missing: no such folder"),
        (["nobody"], "nobody: no learner's folder in it"),
        (["class"], "found ann/77_nope; expected <learner>/<chapter>/ with chapter one of 01_doubling"),
        (["results"], "is the results folder itself"),
    ]:
        paths = [str(tmp_path / name) for name in arguments]
        assert main(["grade", *paths, "--results", str(results)]) == 2
        error = capsys.readouterr().err
        assert part in error and error.count("\n") == 1
        assert [path.name for path in results.iterdir()] == ["marks.csv"]
    hand_in("ann", "")
    assert main(["grade", str(tmp_path / "class"), "--results", str(results), "--db", "nodb://x"]) == 2
    assert "--db: the gradebook cannot be opened" in capsys.readouterr().err
    assert (results / "marks.csv").read_text(encoding="utf-8") == "earlier"


@pytest.mark.slow
def test_another_gradebook_address(hand_in, tmp_path):
    address = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    grade_class(hand_in("ann", answered(RIGHT)), tmp_path / "results", address)
    assert not (tmp_path / "results" / "gradebook.db").exists()
    with open_gradebook(tmp_path / "results", address) as gradebook:
        assert gradebook.find_submission(DOUBLING, "ann").score == 2


@pytest.mark.slow
def test_a_changed_chapter_is_prepared_again(hand_in, tiny_course, tmp_path):
    results = tmp_path / "results"
    submissions = hand_in("ann", answered(RIGHT))
    grade_class(submissions, results)
    release = results / "release" / DOUBLING / f"{DOUBLING}.ipynb"
    old = release.stat().st_mtime_ns
    prepare_course(results)
    assert release.stat().st_mtime_ns == old

    tiny_course(TINY.replace("test_double", "test_double_small"))  # nbgrader refuses this beside submissions
    assert verdicts(grade_class(submissions, results))["ann"] == (
        0, "[T1] 缺少测试单元格 · the notebook lacks the test cell test_double_small"
    )
    with open_gradebook(results) as gradebook:
        gradebook.find_grade("test_double_small", DOUBLING, DOUBLING, "ann").manual_score = 1
        gradebook.db.commit()
    tiny_course()
    with pytest.raises(InputError, match="graded by hand; grade into another results folder"):
        prepare_course(results)


@pytest.mark.slow
def test_nbgraders_configuration_prepares_the_course(tiny_course, tmp_path, monkeypatch):
    monkeypatch.setattr("autograde.paths.RESULTS", tmp_path / "results")
    config = PyFileConfigLoader("nbgrader_config.py", path=str(Path(course.__file__).parent)).load_config()
    assert config.CourseDirectory.root == str(tmp_path / "results")
    with open_gradebook(tmp_path / "results") as gradebook:
        assert [assignment.name for assignment in gradebook.assignments] == [DOUBLING]


# Reports, without any grading.

def test_marks_csv_has_the_columns_and_no_formulas(tmp_path):
    write_marks_csv([Mark("=cmd()", "39b", "handoff", 1.5, 6.0, '@x, "y"'), Mark("-b", "", "", 0, 0, "中文")],
                    tmp_path / "marks.csv")
    assert (tmp_path / "marks.csv").read_text(encoding="utf-8") == (
        "learner,chapter,todo,points,max_points,reason\n"
        "'=cmd(),39b,handoff,1.5,6,\"'@x, \"\"y\"\"\"\n'-b,,,0,0,中文\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["marks.csv"]


def test_a_learners_page_is_escaped_and_says_what_to_do(tmp_path):
    write_feedback_pages([
        Mark("a<b", "39a", "tiers", 2, 6, "[T1] got '<script>', expected 1 : <b>hint</b>"),
        Mark("a<b", "39b", "handoff", 0, 6, "a<b/39b/x.ipynb: the file is empty"),
    ], tmp_path)
    text = (tmp_path / "a<b" / "index.html").read_text(encoding="utf-8")
    assert "<script" not in text and "&lt;script&gt;" in text and "&lt;b&gt;hint" in text
    assert "2 / 6" in text and "What to do" in text and "怎么办" in text


def test_the_table_shows_sums_and_refusals(capsys):
    print_table([
        Mark("[red]ann", "39a", "tiers", 2, 6, "[T1] got 1"), Mark("[red]ann", "39a", "policy", 6, 6, "[T2] ok"),
        Mark("bo", "77", "", 0, 0, "bo/77: no such chapter"),
    ])
    out = capsys.readouterr().out
    assert "[red]ann" in out and "8/12" in out and "not graded: bo/77: no such chapter" in out
