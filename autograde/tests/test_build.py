"""The build: what reaches whom, byte for byte the same, JSON-identical to nbgrader's own release."""
import ast
import json
import subprocess
import sys

import nbformat
import pytest

from autograde import build, generated, inline, lint
from autograde.__main__ import main
from autograde.chapter import LANGUAGES, load_chapter, load_chapters
from autograde.course import SOURCE_LANGUAGE, prepare_course
from autograde.errors import InputError
from autograde.rehearsal import cells_to_run, rehearse


def sources(notebook):
    return "\n".join(cell.source for cell in notebook.cells)


def test_a_learner_gets_no_answer_and_one_language(tiny):
    text = sources(build.release_notebook(tiny(), "en"))
    for secret in ("twice_the_number", "random_numbers", "hidden=True", "Answer:", "number * number", "<< 1", "加倍"):
        assert secret not in text
    assert "# TODO 1: what is twice a number?" in text and build.CODE_STUB in text
    assert 'raise NotImplementedError("TODO 1 尚未完成 · TODO 1 is not done yet")' in text


def test_the_solved_notebook_has_clean_answers_and_no_hidden_tests(tiny):
    notebook = build.solved_notebook(tiny(), "zh")
    text = sources(notebook)
    solution = next(cell for cell in notebook.cells if cell.id == "double").source
    assert solution.endswith("    twice_the_number = number + number\n    return twice_the_number")
    assert "答：加倍" in text and "Answer:" not in text and "hidden=True" not in text and "### " not in text


def test_only_what_is_used_is_inlined(tiny):
    folded = next(cell for cell in build.release_notebook(tiny(), "en").cells if cell.id == "toolkit")
    assert "    def check(" in folded.source and "def tiers_panel" not in folded.source
    assert folded.metadata.jupyter.source_hidden and folded.metadata.cellView == "form"
    assert folded.source.startswith("#@title") and "from toolkit" not in folded.source
    trimmed = tiny({"case, check, demo, hidden_rng, scorecard, why": "case, check, hidden_rng, scorecard"})
    assert "def demo(" not in sources(build.release_notebook(trimmed, "en"))


def test_checks_are_folded_behind_a_title(tiny):
    cell = next(cell for cell in build.release_notebook(tiny(), "en").cells if cell.id == "test_double")
    assert cell.source.startswith("#@title [T1] 检查，运行这一格 · check, run this cell\n")
    assert cell.metadata.jupyter.source_hidden and cell.metadata.cellView == "form"


NAMES_OF_A_LEARNER = """
from copy import copy
from random import random
list = dict = str = type = tuple = zip = enumerate = set = len = max = int = float = isinstance = [1, 2]
io = os = sys = re = case = check = difference = Case = _run = _label = hidden_rng = "mine"
"""


@pytest.mark.parametrize("chapter", load_chapters(), ids=lambda chapter: chapter.name[:3])
def test_no_name_of_a_learner_reaches_the_checks(chapter):
    first = chapter.todos[0].grade_id
    cells = cells_to_run(chapter, solved=[todo.grade_id for todo in chapter.todos])
    clean = [cell for cell in cells if not cell[1]]
    namespace = {"__name__": "__main__"}
    for _, _, code in clean:
        exec(code, namespace)
    before = set(namespace)
    lines = rehearse(cells, override={first: "from copy import copy\nio = os = case = check = hidden_rng = 'mine'"})
    assert set(lines.values()) == {None}
    for test_id, is_test, code in cells:
        if is_test:
            exec(code, namespace)
            assert set(namespace) - before <= {f"_{name}" for name, test, _ in cells if test}, test_id


def test_tools_run_with_their_own_built_ins_and_imports(tiny):
    cells = cells_to_run(tiny(), solved=["double"])
    assert rehearse(cells, override={"double": NAMES_OF_A_LEARNER}) == {"test_double": None}


def test_strings_of_several_lines_stay_as_they_are():
    source = 'def f():\n    """Doc\n    string."""\n    return """one\ntwo"""\n\n\nx = f"""a\n{1}"""'
    namespace = {}
    exec(f"def outer():\n{inline.indented(source)}\n    return f(), x", namespace)
    assert namespace["outer"]() == ("one\ntwo", "a\n1")


def test_inlined_helpers_are_complete():
    namespace = {}
    exec(inline.inlined({"checks": ["check", "case", "declare_todos"]}), namespace)
    namespace["twice"] = lambda n: 2 * n
    exec('declare_todos({"T1": {"title": "t", "tests": {"test_t": 1}}})', namespace)
    exec('check("test_t", "twice", [case(2, want=4, hint="h")])', namespace)
    with pytest.raises(AssertionError, match="got 4, expected 5"):
        exec('check("test_t", "twice", [case(2, want=5, hint="h")])', namespace)


@pytest.mark.parametrize(("code", "message"), [
    ("from toolkit.checks import *", "one by one"),
    ("from toolkit.checks import check as c", "one by one"),
    ("import toolkit.checks", "write `from toolkit"),
    ("from toolkit.checks import check\nx = 1", "does nothing else"),
    ("from toolkit.nowhere import x", "no such toolkit module"),
    ("from toolkit.checks import nothing_like_it", "defines no nothing_like_it"),
])
def test_imports_that_cannot_be_inlined_are_refused_by_cell(tiny, code, message):
    chapter = tiny({"from toolkit.checks import case, check, demo, hidden_rng, scorecard, why": code})
    with pytest.raises(InputError, match=r"01_doubling.py, line \d+, cell 3") as caught:
        build.release_notebook(chapter, "en")
    assert message in str(caught.value)


@pytest.mark.parametrize("chapter", load_chapters(), ids=lambda chapter: chapter.name)
def test_no_cell_gives_a_name_of_the_course_tools_another_meaning(chapter):
    cells = [cell for cell in build.release_notebook(chapter, "en").cells if cell.cell_type == "code"]
    cells = {cell.id: names_bound(cell.source) for cell in cells}
    tools = cells.pop("toolkit")
    assert {cell_id: bound & tools for cell_id, bound in cells.items() if bound & tools} == {}


def names_bound(source):
    """Names that a cell's own statements bind, those inside functions and comprehensions left out."""
    found, queue = set(), [ast.parse(source)]
    while queue:
        node = queue.pop()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif not isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            queue += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("chapter", load_chapters(), ids=lambda chapter: chapter.name)
def test_both_languages_share_code_and_grade_ids(chapter):
    chinese, english = (build.release_notebook(chapter, language) for language in LANGUAGES)
    assert [cell.cell_type for cell in chinese.cells] == [cell.cell_type for cell in english.cells]
    assert [c for c in chinese.cells if c.cell_type == "code"] == [c for c in english.cells if c.cell_type == "code"]


@pytest.mark.parametrize("chapter", load_chapters(), ids=lambda chapter: chapter.name)
def test_the_release_is_what_nbgrader_makes(chapter, tmp_path):
    prepare_course(tmp_path, chapters=[chapter])
    made = (tmp_path / "release" / chapter.name / f"{chapter.name}.ipynb").read_text(encoding="utf-8")
    assert json.loads(made) == json.loads(build.text(build.release_notebook(chapter, SOURCE_LANGUAGE)))


def test_builds_are_the_same_to_the_byte_in_another_process(tmp_path):
    code = (
        "from autograde.build import course_files\n"
        "import hashlib\n"
        "print(hashlib.sha256(repr(sorted(map(str, course_files().items()))).encode()).hexdigest())"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, cwd=tmp_path, check=True,
                       capture_output=True, text=True).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def test_cell_ids_are_unique_and_stable(tiny):
    first, second = (build.release_notebook(tiny(), "en") for _ in range(2))
    ids = [cell.id for cell in first.cells]
    assert ids == [cell.id for cell in second.cells] and len(set(ids)) == len(ids)
    assert {"toolkit", "double", "test_double"} <= set(ids)
    nbformat.validate(first)


def test_a_sound_chapter_has_no_problem(tiny):
    assert lint.problems(tiny()) == []


@pytest.mark.parametrize(("replace", "message"), [
    ({'# %% [markdown] tags=["en"]\n# # 01 · Doubling\n#\n# <!-- badges -->\n\n': ""},
     "cell 1 ('# 01 · 加倍'): a Chinese cell without an English twin"),
    ({'# %% [markdown] tags=["zh"]\n# # 01 · 加倍\n#\n# <!-- badges -->\n\n': ""},
     "cell 1 ('# 01 · Doubling'): an English cell without its Chinese twin"),
    ({'tags=["zh", "answer"]': 'tags=["zh"]'}, "without an English twin"),
    ({'# %% [markdown] tags=["zh", "answer"]': "# %% [markdown]"}, "needs the tag zh or en"),
    ({'"grade_id": "test_double"': '"grade_id": "double"'}, "the grade id double is used 2 times"),
    ({'"grade_id": "test_double"': '"grade_id": "test_other"'}, "no TODO it belongs to"),
    ({'check("test_double", "double", [case(3': 'check("test_treble", "double", [case(3'}, "cell's own id"),
    ({'tags=["wrong"] todo="double" name="squared" hint="squared"': "tags=[]"}, "defines double; tag it wrong"),
    ({"# %%\nscorecard()": "# %%\nscorecard()\n\n# %%\ntwice_the_number = number + number"}, "which is part of"),
    ({"### BEGIN HIDDEN TESTS\n": "", "### END HIDDEN TESTS\n": ""}, "shows a hidden test"),
    ({"TODO 1 尚未完成 · TODO 1 is": "TODO 2 尚未完成 · TODO 2 is"}, 'raise NotImplementedError("TODO 1'),
])
def test_a_faulty_chapter_is_named_with_its_cell(tiny, replace, message):
    assert message in "\n".join(lint.problems(tiny(replace)))


MARKERS = ["### BEGIN SOLUTION", "### END SOLUTION", "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"]


@pytest.mark.parametrize("marker", MARKERS)
def test_an_unbalanced_marker_is_named_before_nbgrader_trips_over_it(tiny, marker):
    lines = "\n".join(lint.problems(tiny({f"{marker}\n": ""})))
    assert "unbalanced" in lines and "01_doubling.py, line" in lines


@pytest.mark.parametrize(("replace", "message"), [
    ({'todo="double" name="squared" hint="squared"': 'todo="double" name="squared"'}, "needs hint"),
    ({'[["number + number", "number + 1"]]': '[["number", "numbers"]]'}, "matches 7 places of the solution"),
    ({'todo="double" name="shifted"': 'todo="triple" name="shifted"'}, "todo='triple' is not one of"),
])
def test_a_variant_without_its_labels_is_refused(tiny, replace, message):
    with pytest.raises(InputError, match=r"01_doubling.py, line \d+, cell") as caught:
        tiny(replace)
    assert message in str(caught.value)


def test_an_edit_gives_the_solution_with_one_slip(tiny):
    variant = next(variant for variant in tiny().variants if variant.name == "one-more")
    assert variant.source.endswith("    twice_the_number = number + 1\n    return twice_the_number")


def test_a_missing_script_is_named(tmp_path):
    with pytest.raises(InputError, match="no such chapter script"):
        load_chapter(tmp_path / "99_none.py")


def test_the_repository_is_in_step():
    assert generated.problems() == []


def test_a_stale_notebook_is_named_with_its_cell(tmp_path):
    path, text = next(iter(build.course_files().items()))
    notebook = json.loads(text)
    notebook["cells"][1]["source"] = ["edited by hand"]
    copy = tmp_path / path.name
    copy.write_text(json.dumps(notebook), encoding="utf-8")
    assert f"cell 2 (id {notebook['cells'][1]['id']})" in generated._first_difference(copy, text.encode())


def test_two_meanings_of_a_name_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(inline, "TOOLKIT", tmp_path)
    (tmp_path / "a.py").write_text("from pathlib import Path\n\n\ndef one():\n    return Path()\n", encoding="utf-8")
    (tmp_path / "b.py").write_text("from toolkit.a import one\n\n\nclass Path:\n    there = one\n", encoding="utf-8")
    with pytest.raises(InputError, match="toolkit/b.py: Path is also bound elsewhere: from pathlib import Path"):
        inline.inlined({"b": ["Path"]})
    (tmp_path / "b.py").write_text("from pathlib import Path\n\n\ndef two():\n    return Path()\n", encoding="utf-8")
    assert inline.inlined({"a": ["one"], "b": ["two"]}).count("from pathlib import Path") == 2


@pytest.mark.parametrize(("replace", "message"), [
    ({'tags=["zh", "answer"]': 'tags=["zh", "answers"]', 'tags=["en", "answer"]': 'tags=["en", "answers"]'},
     "unknown tag 'answers'"),
    ({'tags=["wrong"] todo="double" name="squared"': 'todo="double" name="squared"'}, "hint, name, todo without the"),
    ({"# Answer: doubling is adding a number to itself.": "# 加倍就是自己加自己，这是答案。"}, "tagged en, but"),
    ({"# 答：加倍就是自己加自己。": "# Doubling is adding a number to itself."}, "tagged zh, but"),
    ({"# %%\nscorecard()": "# %%\nscorecard("}, "was never closed"),
    ({"# %%\nscorecard()": "# %%\nif True:\n    import toolkit.checks"}, "imports from the toolkit beside"),
    ({"twice_the_number": "twice_the_given_number", "# %%\nscorecard()":
      "# %%\nscorecard()\n\n# %%\nif True:\n    number = 1; twice_the_given_number = number + number"},
     "which is part of"),
    ({"# <!-- badges -->\n\n# %% [markdown]": "#\n\n# %% [markdown]"}, "the title and a line <!-- badges -->"),
    ({'"locked": false': '"locked": true'}, "solution cells are unlocked"),
])
def test_what_a_maintainer_may_get_wrong_is_told(tiny, replace, message):
    assert message in "\n".join(lint.problems(tiny(replace)))


@pytest.mark.parametrize(("replace", "message"), [
    ({'"grade_id": "double"': '"grade": false'}, "nbgrader metadata without a grade_id"),
    ({'"points": 2': '"points": -2'}, "points: found -2, expected a number above 0"),
])
def test_unusable_metadata_are_refused(tiny, replace, message):
    with pytest.raises(InputError, match=r"01_doubling.py, line \d+, cell") as caught:
        tiny(replace)
    assert message in str(caught.value)


def test_a_faulty_chapter_is_not_built(tiny, monkeypatch, capsys):
    chapter = tiny({"# %%\nscorecard()": "# %%\nscorecard()\n\n# %%\ntwice_the_number = number + number"})
    monkeypatch.setattr(generated, "load_chapters", lambda: [chapter])
    monkeypatch.setattr(generated, "files", lambda: pytest.fail("must not be made"))
    assert main(["build"]) == 1
    assert "which is part of" in capsys.readouterr().err


def test_solved_notebooks_of_their_branch_are_not_built_over(monkeypatch, capsys):
    monkeypatch.setattr(generated.git, "answer", lambda *_: "solutions")
    monkeypatch.setattr(generated, "files", lambda: pytest.fail("must not be made"))
    assert main(["build"]) == 2
    assert "`git switch main` to build" in capsys.readouterr().err


def test_a_learners_work_is_moved_aside_and_not_overwritten(monkeypatch, tmp_path, capsys):
    course, work = tmp_path / "course", tmp_path / "my-work"
    path = course / "en" / "x" / "x.ipynb"
    path.parent.mkdir(parents=True)
    mine = json.dumps({"cells": [{"cell_type": "code", "execution_count": 3, "outputs": [], "source": "my answer"}]})
    path.write_text(mine, encoding="utf-8")
    for name, value in (("COURSE", course), ("MY_WORK", work), ("SAMPLE_CLASS", tmp_path / "none")):
        monkeypatch.setattr(generated, name, value)
    monkeypatch.setattr(generated, "_faults", list)
    monkeypatch.setattr(generated, "files", lambda: {path: b"{}"})
    assert generated.write() == []
    assert path.read_bytes() == b"{}"
    assert (work / "en" / "x" / "x-saved-1.ipynb").read_text(encoding="utf-8") == mine
    assert "kept as" in capsys.readouterr().out


def test_a_check_before_the_tools_cell_says_what_to_run_first(tiny, monkeypatch):
    monkeypatch.delitem(sys.modules, "course_tools", raising=False)
    cell = next(cell for cell in build.release_notebook(tiny(), "en").cells if cell.id == "test_double")
    with pytest.raises(NameError, match="run the course tools cell at the top first"):
        exec(cell.source, {})
