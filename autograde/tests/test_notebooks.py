"""What notebooks need, and what they leave out where that is missing; test_environments.py runs them all."""
import nbformat
import pytest

from autograde import build
from autograde.chapter import LANGUAGES, load_chapters
from autograde.paths import COURSE

NOTEBOOKS = [
    pytest.param(chapter, language, id=f"{chapter.name[:3]}-{language}")
    for chapter in load_chapters()
    for language in LANGUAGES
]


@pytest.mark.slow
@pytest.mark.parametrize("reason", ["this cell needs torch", "nothing is measured while grading"])
def test_without_torch_and_while_grading_measurements_are_left_out(reason, tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_OFFLINE", "1")  # a download may take its time
    if "grading" in reason:
        monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    else:
        absent = tmp_path / "absent"
        absent.mkdir()
        (absent / "torch.py").write_text("raise ImportError", encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(absent))
    chapter = next(chapter for chapter in load_chapters() if chapter.name.startswith("39b"))
    notebook = build.executed(build.solved_notebook(chapter, "en"), tmp_path)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    lines = [output.text for output in outputs if reason in output.get("text", "")]
    assert len(lines) >= 9 and all(line.count("\n") == 1 for line in lines)
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 4 and not list(tmp_path.glob("kv-profile*"))


@pytest.mark.slow
def test_what_a_machine_complains_of_is_not_published(tmp_path):
    cell = nbformat.v4.new_code_cell("import sys\nprint('of the course')\nprint('of this machine', file=sys.stderr)")
    ran = build.executed(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("a text"), cell]), tmp_path)
    assert [output.text for output in ran.cells[1].outputs] == ["of the course\n"]


@pytest.mark.parametrize(("chapter", "language"), NOTEBOOKS)
def test_a_learner_notebook_needs_only_common_packages(chapter, language):
    notebook = nbformat.read(COURSE / language / chapter.name / f"{chapter.name}.ipynb", as_version=4)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    for word in ("!git", "wget", "from toolkit", "import toolkit", "autograde"):
        assert word not in code
    # A message may name the command; no cell runs it.
    assert not [line for line in code.splitlines() if line.strip().startswith(("%", "!"))]
