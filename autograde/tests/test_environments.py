"""Every learner notebook where learners meet it: alone in an empty folder, offline, in newer and older environments."""
import json
import os
import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from conftest import needed
from packaging.requirements import Requirement
from packaging.version import Version

from autograde import build, environments
from autograde.chapter import LANGUAGES, load_chapters
from autograde.errors import InputError
from autograde.paths import COURSE, ROOT
from toolkit.panels import HOW_TO_GET_SLIDERS

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

NOTEBOOKS = [(chapter, language) for chapter in load_chapters() for language in LANGUAGES]
AT_ONCE = 4  # most of a notebook's time goes by the clock: measurements of some seconds, starts of kernels
EXECUTE = ["-m", "jupyter", "execute", "--inplace"]
VALIDATE = ["-m", "pytest", "--nbval", "--rootdir", ".", "-p", "no:cacheprovider", "--tb", "short"]


@pytest.fixture(scope="session")
def environment():
    """environment(name): "current" or one that is made."""
    def get(name):
        with needed():
            return environments.current() if name == "current" else environments.made(name)
    return get


@pytest.fixture(scope="session")
def solved(tmp_path_factory):
    """[text of each solved notebook with its outputs], as they are published: executed here, once for all tests."""
    def execute(one):
        return build.text(build.executed(build.solved_notebook(*one), tmp_path_factory.mktemp("solved")))

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(AT_ONCE) as pool:
        patch.setenv("COURSE_OFFLINE", "1")  # a downloaded trace would give other outputs
        return list(pool.map(execute, NOTEBOOKS))


def blank():
    return [(COURSE / language / chapter.name / f"{chapter.name}.ipynb").read_text(encoding="utf-8")
            for chapter, language in NOTEBOOKS]


def run_each(texts, environment, arguments, *, widgets=True):
    """[(which, chapter, finished process, the notebook as it is afterwards)]: each run alone in a folder of its own."""
    def run(text, one):
        chapter, language = one
        with tempfile.TemporaryDirectory() as folder:
            name = f"{chapter.name}.ipynb"
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
            process = environments.run_alone(environment, folder, [*arguments, name], widgets=widgets)
            notebook = nbformat.read(os.path.join(folder, name), as_version=4)
            return f"{chapter.name[:3]}-{language}", chapter, process, notebook

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(run, texts, NOTEBOOKS))


def outputs(notebook):
    return [(cell.id, output) for cell in notebook.cells for output in cell.get("outputs", [])]


def noise(notebook):
    """What a learner should not see: (cell, text) on stderr."""
    return [(cell_id, output.text) for cell_id, output in outputs(notebook) if output.get("name") == "stderr"]


@pytest.mark.slow
def test_stored_pictures_have_a_text_alternative(solved):
    stored = [output for text in solved for _, output in outputs(nbformat.reads(text, as_version=4))]
    pictures = [output for output in stored if "image/png" in output.get("data", {})]
    assert len(pictures) > len(NOTEBOOKS) and all(output.metadata["image/png"]["alt"] for output in pictures)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["current", "colab", "oldest"])
def test_solved_notebooks_repeat_their_stored_outputs(name, environment, solved):
    chosen = environment(name)
    for which, _, process, _ in run_each(solved, chosen, VALIDATE):
        assert process.returncode == 0, f"{which} in {name}:\n{process.stdout[-4000:]}{process.stderr[-1000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["current", "colab", "oldest", "oldest without ipywidgets"])
def test_blank_notebooks_fail_only_as_unfinished(name, environment):
    chosen, widgets = environment(name.split()[0]), "without" not in name
    for which, chapter, process, notebook in run_each(blank(), chosen, [*EXECUTE, "--allow-errors"], widgets=widgets):
        assert process.returncode == 0, f"{which} in {name}: {process.stderr[-2000:]}"
        assert noise(notebook) == [], which
        errors = {cell_id: (output.ename, output.evalue) for cell_id, output in outputs(notebook)
                  if output.output_type == "error"}
        assert errors == {
            test_id: ("NotImplementedError", f"[{todo.label}] not done yet · 尚未完成")
            for todo in chapter.todos for test_id in todo.tests
        }, which


@pytest.mark.slow
def test_without_ipywidgets_solved_notebooks_show_pictures_and_how_to_get_sliders(environment, solved):
    oldest = environment("oldest")
    for (which, _, process, notebook), text in zip(run_each(solved, oldest, EXECUTE, widgets=False), solved):
        assert process.returncode == 0, f"{which}: {process.stderr[-2000:]}"  # it stops at the first error
        assert noise(notebook) == [], which
        panels = [output for _, output in outputs(nbformat.reads(text, as_version=4)) if "widget-view" in str(output)]
        shown = [output.get("data", {}) for _, output in outputs(notebook)]
        assert not [data for data in shown if "widget-view" in str(data)]
        pictures = sum("image/png" in data for data in shown)
        assert pictures == len(panels) == sum(HOW_TO_GET_SLIDERS in data.get("text/plain", "") for data in shown) > 0


# What the environments are made of, and how

def test_alone_means_offline_without_the_repository_and_at_home_in_its_folder(tmp_path):
    (tmp_path / "ask.py").write_text("""
import json, os, socket
def connects(address):
    try:
        socket.create_connection(address, 2).close()
        return True
    except OSError as error:
        return type(error).__name__
server = socket.create_server(("127.0.0.1", 0))
try:
    import toolkit.checks as repository
except ImportError:
    repository = None
open(os.path.expanduser("~/written"), "w").close()
print(json.dumps([connects(server.getsockname()), connects(("9.9.9.9", 53)), bool(repository), sorted(os.environ)]))
""")
    current = environments.current()
    process = environments.run_alone(current._replace(widgets=tmp_path), tmp_path, ["ask.py"])
    loopback, outside, repository, variables = json.loads(process.stdout)
    assert loopback is True and outside == "OSError" and not repository
    assert variables == ["HOME", "LANG", "PATH", "PWD", "PYTHONPATH"] and (tmp_path / "written").exists()
    process = environments.run_alone(current._replace(widgets=tmp_path), tmp_path, ["ask.py"], widgets=False)
    assert "PYTHONPATH" not in json.loads(process.stdout)[3]


def test_what_was_interrupted_or_has_other_requirements_is_made_anew(tmp_path, monkeypatch):
    def interrupted(name, python, folder):
        (folder / "bin").mkdir(parents=True)
        raise KeyboardInterrupt

    def complete(name, python, folder):
        assert not folder.exists()
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").touch()
        making.append(folder.name)

    making, requirements = [], tmp_path / "requirements"
    shutil.copytree(environments.REQUIREMENTS, requirements)
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path / "made")
    monkeypatch.setattr(environments, "REQUIREMENTS", requirements)
    monkeypatch.setattr(environments, "_python", lambda name: ("python", "3.10"))
    monkeypatch.setattr(environments, "_make", interrupted)
    with pytest.raises(KeyboardInterrupt):
        environments.made("oldest")
    monkeypatch.setattr(environments, "_make", complete)
    environments.made("oldest")
    environments.made("oldest")
    assert len(making) == 1
    Path(environments.made("oldest").python).unlink()  # as where another Python was put in its place
    environments.made("oldest")
    assert len(making) == 2 and len(set(making)) == 1
    (requirements / "oldest.txt").write_text("numpy==1.26.1")
    environments.made("colab")
    python = environments.made("oldest").python
    assert len(set(making)) == 3 and making[3] in python
    left = [folder.name for folder in (tmp_path / "made").iterdir() if folder.is_dir()]
    assert sorted(left) == sorted(making[2:])  # the one with the old requirements is gone


def test_a_python_that_runs_is_found_behind_a_shim_that_does_not(tmp_path, monkeypatch):
    def script(path, line):
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
        return str(path)

    script(tmp_path / "shims" / "python3.10", "echo not chosen >&2; exit 127")
    monkeypatch.setenv("PATH", f"{tmp_path}/shims:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(environments, "sys", SimpleNamespace(executable="/bin/false"))
    with pytest.raises(InputError, match=r"^\S+oldest.txt: found no python3.10 with venv, on PATH or in \S+; install"):
        environments.made("oldest")
    real = script(tmp_path / "versions" / "3.10.13" / "bin" / "python", "echo 3 10")
    assert environments._python("oldest") == (real, "3.10")


def test_packages_that_cannot_be_installed_are_named_in_one_line():
    with pytest.raises(InputError, match=r"^\S+oldest.txt: the environment cannot be made: ERROR: no numpy$"):
        environments._run(["sh", "-c", "echo trying; echo ERROR: no numpy >&2; echo notice >&2; exit 1"], "oldest")


def pins(name):
    text = (environments.REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8")
    return [Requirement(line) for line in re.findall(r"^[a-z].*", text, re.M)]


def test_oldest_is_what_pyproject_allows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest = {one.name: str(one.specifier).removeprefix(">=") for one in map(Requirement, [
        *project["dependencies"], *project["optional-dependencies"]["dev"], f"python{project['requires-python']}"])}
    versions = {one.name: str(one.specifier).removeprefix("==") for one in [*pins("oldest"), *pins("widgets")]}
    versions["python"] = "{}.{}".format(*environments.PYTHONS["oldest"][0])
    for name in ("python", "ipykernel", "ipywidgets", "matplotlib", "nbclient", "nbformat", "nbval", "numpy", "torch"):
        assert Version(versions[name]) == Version(lowest[name]), name


@pytest.mark.parametrize("name", ["colab", "oldest"])
def test_constraints_hold_each_requirement_s_version(name):
    known = {(one.name.replace("_", "-"), str(one.specifier)) for one in pins(f"{name}-constraints")}
    wanted = pins(name) + (pins("widgets") if name == "colab" else [])
    assert len(wanted) > 6 and {(one.name.replace("_", "-"), str(one.specifier)) for one in wanted} <= known


@pytest.mark.parametrize(("ci", "outcome"), [("true", InputError), ("", pytest.skip.Exception)])
def test_what_is_missing_fails_in_ci_and_is_skipped_elsewhere(monkeypatch, ci, outcome):
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no such thing here"), needed():
        raise InputError("no such thing here")
