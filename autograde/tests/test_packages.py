"""A kernel without numpy, matplotlib or torch says so at the first cell, in one line."""
import importlib.util
import sys
import sysconfig
import venv
from pathlib import Path

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient

from autograde.badges import notebook_path
from autograde.paths import ROOT
from toolkit.packages import require_packages

NOTEBOOK = ROOT / notebook_path("39b_hetero_pd_and_serving_tiers", "en")
STOPS = "numpy matplotlib missing: run %pip install numpy matplotlib, restart the kernel, then run from the top"


@pytest.fixture
def lacking(monkeypatch):
    """lacking("torch", …): these packages cannot be found."""
    monkeypatch.setitem(sys.modules, "course_tools", None)
    found = importlib.util.find_spec

    def without(*names):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in names else found(name))
    return without


def test_with_all_packages_nothing_is_said(lacking, capsys):
    require_packages(["numpy", "matplotlib"])
    assert capsys.readouterr().out == "" and sys.modules["course_tools"] is None


def test_without_torch_one_line_says_what_is_left_out(lacking, capsys):
    lacking("torch")
    require_packages(["numpy", "torch"])
    line = capsys.readouterr().out
    assert line.count("\n") == 1 and "%pip install torch" in line and "没有 torch" in line


def test_without_numpy_every_cell_that_needs_the_tools_repeats_the_line(lacking):
    lacking("numpy", "matplotlib")
    with pytest.raises(ImportError) as first:
        require_packages(["numpy", "matplotlib"])
    with pytest.raises(ImportError) as later:
        from course_tools import check  # noqa: F401
    # IPython's inspect looks at every module: one that refuses these would turn each traceback into a mess.
    assert not hasattr(sys.modules["course_tools"], "__file__")
    for caught in (first, later):
        assert caught.value._render_traceback_() == [str(caught.value)]
        assert str(caught.value).endswith(STOPS) and "缺少 numpy matplotlib" in str(caught.value)


def python_without(names, folder):
    """A Python with all packages of this one but these."""
    venv.create(folder, with_pip=False)
    target = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name not in names and not entry.name.startswith("__editable__"):
            (target / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


@pytest.mark.slow
@pytest.mark.parametrize(("missing", "first", "later"), [
    (["numpy", "matplotlib"], STOPS, STOPS),
    (["matplotlib"], STOPS.replace("numpy ", ""), STOPS.replace("numpy ", "")),
    (["torch"], "(to measure: %pip install torch, then restart the kernel)", "[T1] not done yet · 尚未完成"),
])
def test_a_kernel_that_lacks_a_package(missing, first, later, tmp_path):
    python = python_without(missing, tmp_path / "python")

    class Manager(AsyncKernelManager):
        kernel_spec = KernelSpec(argv=[str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"])

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.id in ("toolkit", "classify", "test_classify")]
    NotebookClient(
        notebook, km=Manager(), allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [
        "\n".join(output.traceback) if output.output_type == "error" else output.text.rstrip("\n")
        for cell in notebook.cells
        for output in cell.outputs
    ]
    assert [line[-len(wanted):] for line, wanted in zip(shown, (first, later))] == [first, later]
    assert len(shown) == 2 and not any("\n" in line for line in shown)
