"""Grading a class: points, reasons and pages; the gradebook stays nbgrader's own; odd, bad and changed input."""
import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import TINY
from grading import (
    DOUBLING,
    POOLS,
    RIGHT,
    TIERS,
    answered,
    chapter_named,
    hand_in_whole,
    in_gradebook,
    in_marks_csv,
    leaked,
    points,
    solved_text,
)
from nbgrader.apps import NbGraderAPI
from traitlets.config import PyFileConfigLoader

from autograde import build, course
from autograde.__main__ import main
from autograde.chapter import load_chapters, nbgrader
from autograde.course import open_gradebook, prepare_course
from autograde.errors import InputError
from autograde.grade import check_notebook, grade_class
from autograde.samples import sample_submissions
from autograde.sandbox import sandbox_available

WHY_NOT = sandbox_available()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or ""),
    pytest.mark.usefixtures("alembic_asked_once"),
]
FULL = {TIERS: {"tiers": 6, "policy": 6, "outcome": 6}, POOLS: dict.fromkeys(
    ("classify", "handoff", "capability", "routing"), 6)}
PART = object()  # a wrong answer: some points, not all
# What each learner loses against full marks in the chapters handed in.
SAMPLE_CLASS = {
    "alice-lin": {TIERS: {}, POOLS: {}},
    "王小明": {TIERS: {}, POOLS: {}},
    "bruno": {POOLS: {}},
    "陈思": {TIERS: dict.fromkeys(FULL[TIERS], 0), POOLS: dict.fromkeys(FULL[POOLS], 0)},
    "dora.okafor": {TIERS: {"policy": 0, "outcome": 0}, POOLS: {"capability": 0, "routing": 0}},
    "李雷": {TIERS: {"policy": PART}, POOLS: {"handoff": PART}},
    "emil": {POOLS: {"classify": 0}},
    "fatima": {POOLS: {}},
    "gao yu 高宇": {TIERS: dict.fromkeys(FULL[TIERS], 0), POOLS: {}},
    "hugo": {POOLS: dict.fromkeys(FULL[POOLS], 0)},
    "ines": {TIERS: {}},
    "赵敏": {POOLS: {"capability": PART}},
}
WRONG_ANSWERS = 3  # of each chapter, for the comparison with nbgrader's own grading


# The sample class, graded once with the real chapters.

@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """(ClassResults, results folder) of the sample class."""
    submissions = tmp_path_factory.mktemp("class")
    for name, data in sample_submissions().items():
        path = submissions / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    results = tmp_path_factory.mktemp("results")
    return grade_class(submissions, results), results


def reasons(outcome, learner, chapter_name):
    return {mark.todo: mark.reason for one in outcome for mark in one.marks
            if (mark.learner, mark.chapter) == (learner, chapter_name)}


@pytest.mark.slow
def test_the_sample_class_gets_the_marks_it_was_made_for(sample):
    outcome, results = sample
    got = {}
    for mark in (mark for one in outcome for mark in one.marks):
        most = FULL[mark.chapter][mark.todo]
        assert mark.max_points == most
        part = SAMPLE_CLASS[mark.learner][mark.chapter].get(mark.todo) is PART and 0 <= mark.points < most
        got.setdefault(mark.learner, {}).setdefault(mark.chapter, {})[mark.todo] = PART if part else mark.points
    assert got == {
        learner: {name: FULL[name] | lost for name, lost in chapters.items()}
        for learner, chapters in SAMPLE_CLASS.items()
    }
    assert in_gradebook(results) == in_marks_csv(results) == points(outcome)


@pytest.mark.slow
def test_reasons_say_what_the_learner_needs_to_know(sample):
    outcome, _ = sample
    assert set(reasons(outcome, "alice-lin", POOLS).values()) == {f"[T{n}] ok" for n in (1, 2, 3, 4)}
    assert set(reasons(outcome, "陈思", TIERS).values()) == {f"[T{n}] not done yet · 尚未完成" for n in (1, 2, 3)}
    assert "bits, not bytes" in reasons(outcome, "李雷", POOLS)["handoff"]
    assert "a syntax error" in reasons(outcome, "emil", POOLS)["classify"]
    # A wrong TODO 3 does not cost TODO 4 its points, and the verdict says so.
    assert "reference answers of evaluate_pool_capability" in reasons(outcome, "赵敏", POOLS)["routing"]
    assert all("cut off" in reason for reason in reasons(outcome, "gao yu 高宇", TIERS).values())
    assert all("no notebook was found, only: hugo" in r for r in reasons(outcome, "hugo", POOLS).values())


@pytest.mark.slow
def test_formgrader_finds_assignments_and_graded_submissions(sample):
    _, results = sample
    api = NbGraderAPI(config=course.course_config(results))
    assert {a["name"]: a["max_score"] for a in api.get_assignments()} == {TIERS: 18, POOLS: 24}
    bruno = next(s for s in api.get_submissions(POOLS) if s["student"] == "bruno")
    assert bruno["autograded"] and not bruno["needs_manual_grade"] and bruno["score"] == 24


@pytest.mark.slow
def test_the_executed_notebook_is_the_released_one_with_the_learners_code(sample):
    _, results = sample
    executed = nbformat.read(results / "autograded" / "李雷" / POOLS / f"{POOLS}.ipynb", 4)
    nbformat.validate(executed)
    source = build.source_notebook(chapter_named(POOLS), "en")
    assert [nbgrader(cell).get("grade_id") for cell in executed.cells] == [
        nbgrader(cell).get("grade_id") for cell in source.cells]
    cells = {nbgrader(cell).get("grade_id"): cell for cell in executed.cells}
    assert "BEGIN SOLUTION" not in cells["handoff"].source and "def choose_handoff_mode" in cells["handoff"].source
    assert "bits, not bytes" in cells["test_handoff"].outputs[0].evalue
    assert cells["test_classify"].outputs[0].text == "[T1] ok"


@pytest.mark.slow
def test_no_page_holds_a_hidden_test(sample):
    _, results = sample
    pages = [*(results / "feedback").glob("*/index.html"), results / "class.html"]
    assert len(pages) == len(SAMPLE_CLASS) + 1
    for page in pages:
        assert leaked(page, POOLS) == leaked(page, TIERS) == []


# nbgrader's own grading of the same submissions.

@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """(results folder, nbgrader_command): whole notebooks, right, unfinished and wrong, graded by us, who leave them
    where nbgrader looks for them."""
    results = tmp_path_factory.mktemp("compared")
    submissions = tmp_path_factory.mktemp("handed-in") / "submitted"
    for chapter in load_chapters():
        first, last = chapter.todos[0].grade_id, chapter.todos[-1].grade_id
        stubs = {nbgrader(cell).get("grade_id"): cell.source for cell in build.release_notebook(chapter, "zh").cells}
        wrong = [variant for variant in chapter.variants if variant.kind == "wrong"]
        hand_in_whole(submissions, "full", chapter.name, solved_text(chapter))
        hand_in_whole(submissions, "part", chapter.name, solved_text(chapter, **{last: stubs[last]}))
        hand_in_whole(submissions, "broken", chapter.name, solved_text(chapter, **{first: "1 / 0"}))
        for number, variant in enumerate(wrong[:: len(wrong) // WRONG_ANSWERS][:WRONG_ANSWERS]):
            right = next(cell.source for cell in build.solved_notebook(chapter, "zh").cells
                         if nbgrader(cell).get("grade_id") == variant.todo)
            text = solved_text(chapter, **{variant.todo: f"{right}\n\n\n{variant.source}"})
            hand_in_whole(submissions, f"wrong{number}", chapter.name, text)
    grade_class(submissions, results)
    for path in submissions.rglob("*.ipynb"):
        assert (results / "submitted" / path.relative_to(submissions)).read_bytes() == path.read_bytes()

    def nbgrader_command(*arguments):
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run([sys.executable, "-m", "nbgrader", *arguments], cwd=results, env=environment,
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return results, nbgrader_command


def auto_scores(results, forget=False):
    """{(learner, test id): automatic score} of the gradebook, which `forget` then empties."""
    scores = {}
    with open_gradebook(results) as gradebook:
        for assignment in gradebook.assignments:
            for submission in assignment.submissions:
                for grade in submission.notebooks[0].grades:
                    scores[submission.student.id, grade.name] = grade.auto_score
                    grade.auto_score = None if forget else grade.auto_score
        gradebook.db.commit()
    return scores


@pytest.mark.slow
def test_stock_nbgrader_gives_the_same_scores(compared):
    results, nbgrader_command = compared
    ours = auto_scores(results, forget=True)
    for chapter in load_chapters():
        nbgrader_command("autograde", chapter.name, "--force")
    assert auto_scores(results) == ours
    assert 0 in ours.values() and None not in ours.values()
    assert all(score for (learner, _), score in ours.items() if learner == "full")

    nbgrader_command("generate_feedback", POOLS, "--student", "wrong0", "--force")
    assert not leaked(results / "feedback" / "wrong0" / POOLS / f"{POOLS}.html", POOLS)
    nbgrader_command("export", "--to", "grades.csv")
    with open(results / "grades.csv", encoding="utf-8", newline="") as file:
        exported = {(row["student_id"], row["assignment"]): float(row["score"]) for row in csv.DictReader(file)}
    assert exported == in_marks_csv(results)


# Odd submissions, with a tiny chapter.

def verdicts(outcome):
    return {one.learner: (mark.points, mark.reason) for one in outcome for mark in one.marks}


def test_odd_submissions_are_graded_or_listed(hand_in, tmp_path):
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
        "王 [1]*.?": answered(RIGHT), "a+b": answered(RIGHT), "dies": answered(
            "import os\ndef double(number):\n    os._exit(3)"),
        "empty": "", "list": "[1, 2]", "no cells": '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
    }.items():
        submissions = hand_in(learner, notebook)
    hand_in("copy", answered(RIGHT), f"Copy_of_{DOUBLING}.ipynb")
    hand_in("two", answered("def double(number):\n    return 3"), "a.ipynb")
    hand_in("two", answered(RIGHT), "b.ipynb")
    hand_in("other chapter", build.text(nbformat.v4.new_notebook()), "77_nope.ipynb", folder="77_nope")
    link = submissions / "link" / DOUBLING / f"{DOUBLING}.ipynb"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "results" / "source" / DOUBLING / f"{DOUBLING}.ipynb")

    outcome = grade_class(submissions, tmp_path / "results")
    got = {re.sub(r"-[0-9a-f]{8}$", "", learner): found for learner, found in verdicts(outcome).items()}
    full = {"noisy", "twice", "stripped", "no test", "copy", "two", "王_1", "a_b"}
    assert {learner for learner, (marks, _) in got.items() if marks} == full
    assert all(got[learner] == (2, "[T1] ok") for learner in full)
    for learner, part in {
        "dies": "exit 3", "empty": "the file is empty", "list": "is no notebook", "link": "link",
        "no cells": "no function double", "other chapter": "of no known chapter; expected one of 01_doubling",
    }.items():
        assert part in got[learner][1] and "\n" not in got[learner][1]
    assert [(m.todo, m.max_points) for one in outcome for m in one.marks if one.learner == "other chapter"] == [
        ("", 0)]
    notes = next(one.graded.notes for one in outcome if one.learner == "two")
    assert any("b.ipynb" in note for note in notes)
    # The same again: nothing is counted twice, and no earlier result "stands" where there was none.
    assert [one.marks for one in grade_class(submissions, tmp_path / "results")] == [one.marks for one in outcome]


def test_names_that_differ_in_signs_alone_stay_two_learners(hand_in, tmp_path):
    hand_in("a+b", answered(RIGHT))
    submissions = hand_in("a*b", answered("def double(number):\n    return 3"))
    grade_class(submissions, tmp_path / "results")
    assert sorted(in_gradebook(tmp_path / "results").values()) == [0, 2]


def test_a_worse_second_submission_replaces_the_first(hand_in, tmp_path):
    results = tmp_path / "results"
    assert verdicts(grade_class(hand_in("ann", answered(RIGHT)), results))["ann"] == (2, "[T1] ok")
    submissions = hand_in("ann", answered("def double(number):\n    return number ** 2"))
    assert verdicts(grade_class(submissions, results))["ann"][0] == 0
    assert in_gradebook(results) == {("ann", DOUBLING): 0}


def test_an_unreadable_second_submission_leaves_the_first_one_s_result(hand_in, tmp_path):
    results = tmp_path / "results"
    hand_in("ann", answered(RIGHT))
    grade_class(hand_in("bo", "{"), results)
    submissions = hand_in("ann", "{")
    got = verdicts(grade_class(submissions, results))
    assert (got["ann"][0], got["bo"][0]) == (2, 0)
    assert "cut off" in got["ann"][1] and "the earlier result stands" in got["ann"][1]
    assert "stands" not in got["bo"][1]
    assert in_gradebook(results) == {("ann", DOUBLING): 2, ("bo", DOUBLING): 0}
    assert RIGHT in (results / "autograded" / "ann" / DOUBLING / f"{DOUBLING}.ipynb").read_text().replace("\\n", "\n")


def test_pages_hold_no_markup_of_a_learner(hand_in, tmp_path):
    attack = "<script>alert('from the learner')</script> <img src=x onerror=alert(1)>"
    notebook = answered(f"print({attack!r})\ndef double(number):\n    raise ValueError({attack!r})")
    grade_class(hand_in("<script>alert('name')<∕script>", notebook), tmp_path / "results")
    pages = [*(tmp_path / "results" / "feedback").glob("*/index.html"), tmp_path / "results" / "class.html"]
    assert len(pages) == 2
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "<script>alert" not in text and not re.search(r"<img[^>]*onerror", text)
    assert "&lt;script&gt;alert" in pages[0].read_text(encoding="utf-8")


def test_check_gives_one_learner_the_same_lines(hand_in, tmp_path, capsys):
    path = hand_in("ann", answered("def double(number):\n    return number ** 2"), "renamed.ipynb")
    path = path / "ann" / DOUBLING / "renamed.ipynb"
    assert main(["check", str(path)]) == 0
    assert "0/2 double: [T1] got 9, expected 6 : squared · double(3)" in capsys.readouterr().out
    notebook = answered(RIGHT)
    next(cell for cell in notebook.cells if cell.source == "scorecard()").source = "%time 1"
    path.write_text(build.text(notebook), encoding="utf-8")
    assert main(["check", str(path)]) == 0
    assert "2/2\n- " in capsys.readouterr().out  # what was repaired is listed below
    path.write_text("{", encoding="utf-8")
    assert main(["check", str(path)]) == 2
    assert f"{path}: " in capsys.readouterr().err
    assert main(["check", str(path.with_name("missing.ipynb"))]) == 2
    assert "missing.ipynb: no such file" in capsys.readouterr().err
    path = path.with_name("x.ipynb")
    path.write_text(json.dumps(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])), encoding="utf-8")
    with pytest.raises(InputError, match="of no known chapter; expected one of 01_doubling"):
        check_notebook(path)


def test_bad_input_leaves_earlier_results_alone(hand_in, tmp_path, capsys):
    results = tmp_path / "results"
    grade_class(hand_in("ann", answered(RIGHT)), results)
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    (tmp_path / "nobody").mkdir()
    (tmp_path / "text.txt").write_text("no notebook")
    (tmp_path / "page.ipynb").write_text("<html>")
    for arguments, part in [
        (["missing"], "missing: no such file or folder"),
        (["nobody"], "nobody: no notebook of a known chapter (01_doubling)"),
        (["text.txt"], "text.txt: no notebook of a known chapter (01_doubling)"),
        (["results"], "the results folder lies in it"),
        (["."], "the results folder lies in it"),
        (["class", "--db", "nodb://x"], "--db: the gradebook cannot be opened"),
        (["class", "--db", "nonsense"], "--db: the gradebook cannot be opened"),
        (["class", "--scheduler", "tcp://127.0.0.1:1"], "--scheduler"),
    ]:
        if "--scheduler" in arguments:
            hand_in("bo", answered(RIGHT))
        arguments[0] = str(tmp_path / arguments[0])
        assert main(["grade", *arguments, "--results", str(results)]) == 2
        error = capsys.readouterr().err
        assert part in error and error.count("\n") == 1
        assert {path: path.read_bytes() for path in results.rglob("*") if path.is_file()} == before


def test_without_bubblewrap_grading_refuses_and_says_how_to_install_it(hand_in, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("autograde.grade.sandbox_available", lambda: "bubblewrap (bwrap) is missing. apt install it")
    submissions = hand_in("ann", answered(RIGHT))
    assert main(["grade", str(submissions), "--results", str(tmp_path / "results")]) == 2
    assert "bubblewrap (bwrap) is missing" in capsys.readouterr().err
    assert main(["check", str(submissions / "ann" / DOUBLING / f"{DOUBLING}.ipynb")]) == 2
    assert not (tmp_path / "results").exists()


def test_unsafe_grading_gives_the_same_marks_and_says_so(hand_in, tmp_path):
    (one,) = grade_class(hand_in("ann", answered(RIGHT)), tmp_path / "results", unsafe=True)
    assert one.graded.unsafe and one.marks[0].points == 2
    (one,) = grade_class(tmp_path / "class", tmp_path / "results")
    assert not one.graded.unsafe  # it was graded again, with the sandbox


def test_another_gradebook_address(hand_in, tmp_path):
    address = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    grade_class(hand_in("ann", answered(RIGHT)), tmp_path / "results", address)
    assert not (tmp_path / "results" / "gradebook.db").exists()
    assert in_gradebook(tmp_path / "results", address) == {("ann", DOUBLING): 2}


def test_a_changed_chapter_is_prepared_again(hand_in, tiny_course, tmp_path):
    results = tmp_path / "results"
    submissions = hand_in("ann", answered(RIGHT))
    grade_class(submissions, results)
    release = results / "release" / DOUBLING / f"{DOUBLING}.ipynb"
    old = release.stat().st_mtime_ns
    prepare_course(results)
    assert release.stat().st_mtime_ns == old

    tiny_course(TINY.replace("test_double", "test_double_small"))  # nbgrader refuses this beside submissions
    (one,) = grade_class(submissions, results)
    assert one.marks[0].points == 2 and list(one.graded.verdicts) == ["test_double_small"]
    with open_gradebook(results) as gradebook:
        gradebook.find_grade("test_double_small", DOUBLING, DOUBLING, "ann").manual_score = 1
        gradebook.db.commit()
    tiny_course()
    with pytest.raises(InputError, match="graded by hand; grade into another results folder"):
        prepare_course(results)


def test_a_changed_check_grades_all_again(hand_in, tiny_course, tmp_path):
    submissions = hand_in("ann", answered(RIGHT))
    grade_class(submissions, tmp_path / "results")
    tiny_course(TINY.replace("case(3, want=6", "case(3, want=7"))
    assert verdicts(grade_class(submissions, tmp_path / "results"))["ann"][0] == 0


def test_nbgraders_configuration_prepares_the_course(tiny_course, tmp_path, monkeypatch):
    monkeypatch.setattr("autograde.paths.RESULTS", tmp_path / "results")
    config = PyFileConfigLoader("nbgrader_config.py", path=str(Path(course.__file__).parent)).load_config()
    assert config.CourseDirectory.root == str(tmp_path / "results")
    with open_gradebook(tmp_path / "results") as gradebook:
        assert [assignment.name for assignment in gradebook.assignments] == [DOUBLING]
