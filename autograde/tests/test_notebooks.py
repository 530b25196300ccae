"""The notebooks in real kernels: solved ones repeat their stored outputs, blank ones fail only as unfinished."""
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from autograde import build
from autograde.chapter import LANGUAGES, load_chapters
from autograde.paths import COURSE

pytestmark = pytest.mark.slow
NOTEBOOKS = [
    pytest.param(chapter, language, id=f"{chapter.name[:3]}-{language}")
    for chapter in load_chapters()
    for language in LANGUAGES
]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Traces are synthetic here: a downloaded one would give other outputs than the stored ones."""
    monkeypatch.setenv("COURSE_OFFLINE", "1")


@pytest.mark.parametrize(("chapter", "language"), NOTEBOOKS)
def test_a_solved_notebook_repeats_its_stored_outputs(chapter, language, tmp_path):
    path = tmp_path / f"{chapter.name}.ipynb"
    notebook = build.executed(build.solved_notebook(chapter, language), tmp_path)
    assert any(cell.get("outputs") for cell in notebook.cells)
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        assert "image/png" not in output.get("data", {}) or output.metadata["image/png"]["alt"]
    path.write_text(build.text(notebook), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval", "--rootdir", tmp_path, "-p", "no:cacheprovider", path],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:]


@pytest.mark.parametrize(("chapter", "language"), NOTEBOOKS)
def test_a_blank_notebook_runs_alone_and_fails_only_as_unfinished(chapter, language, tmp_path):
    path = shutil.copy(COURSE / language / chapter.name / f"{chapter.name}.ipynb", tmp_path)
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}).execute()
    failed = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output.get("name") != "stderr", output.text
            if output.output_type == "error":
                assert output.ename == "NotImplementedError", (cell.id, output.traceback)
                failed[cell.id] = output.evalue
    tests = {test_id: todo.label for todo in chapter.todos for test_id in todo.tests}
    assert failed == {test_id: f"[{label}] not done yet · 尚未完成" for test_id, label in tests.items()}


@pytest.mark.parametrize("reason", ["this cell needs torch", "nothing is measured while grading"])
def test_without_torch_and_while_grading_measurements_are_left_out(reason, tmp_path, monkeypatch):
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


@pytest.mark.parametrize(("chapter", "language"), NOTEBOOKS)
def test_a_learner_notebook_needs_only_common_packages(chapter, language):
    notebook = nbformat.read(COURSE / language / chapter.name / f"{chapter.name}.ipynb", as_version=4)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    for word in ("!git", "wget", "from toolkit", "import toolkit", "autograde"):
        assert word not in code
    # A message may name the command; no cell runs it.
    assert not [line for line in code.splitlines() if line.strip().startswith(("%", "!"))]
