"""The zip for a classroom without a network: what is in it, the same bytes each time, and that it runs."""
import io
import json
import re
import zipfile

import pytest
from conftest import needed

from autograde import bundle, environments
from autograde.chapter import LANGUAGES, load_chapters
from autograde.generated import title
from autograde.paths import COURSE, ROOT


@pytest.fixture(scope="module")
def files():
    return bundle.bundle_files()


def test_it_holds_the_learner_notebooks_the_page_and_the_licences(files):
    notebooks = {f"{language}/{chapter.name}.ipynb": COURSE / language / chapter.name / f"{chapter.name}.ipynb"
                 for language in LANGUAGES for chapter in load_chapters()}
    assert list(files)[0] == "START.html"
    assert set(files) == {"START.html", "LICENSE.txt", "LICENSE-TEXT.txt", *notebooks}
    for name, path in notebooks.items():
        assert files[name] == path.read_text(encoding="utf-8")
    assert "Creative Commons" in files["LICENSE-TEXT.txt"] and "Apache License" in files["LICENSE.txt"]


def test_the_page_names_every_chapter_in_both_languages_and_loads_nothing(files):
    page = files["START.html"]
    for chapter in load_chapters():
        for language in LANGUAGES:
            assert title(chapter, language) in page and f"<code>{language}/{chapter.name}.ipynb</code>" in page
    assert not re.search(r"<(script|link|img|iframe)|\bsrc=|url\(|@import", page)
    assert page.count("<code>jupyter lab</code>") == 2 and "{{" not in page
    parts = page[page.index("<h2"):].split('<section lang="en">')
    chinese, english = ([len(re.findall(rf"<{tag}[ >]", part)) for tag in "h2 h3 ol li pre code a".split()]
                        for part in parts)
    assert chinese == english


def test_what_is_downloaded_for_a_classroom_holds_the_cpu_only_torch_and_all_that_is_installed(files):
    commands = re.findall(r"python -m pip (download|install) (.+?)(?:</pre>)?$", files["START.html"], re.M)
    packages = "jupyterlab numpy matplotlib ipywidgets"
    assert commands == 2 * [
        ("download", "--dest wheels torch --index-url https://download.pytorch.org/whl/cpu"),
        ("download", f"--dest wheels {packages}"),
        ("install", f"--no-index --find-links wheels torch {packages}"),
    ]


def test_the_bytes_are_the_same_each_time_and_unpack_into_one_folder():
    packed = bundle.packed({"START.html": "<p>开始", "zh/a.ipynb": "{}"}, "course-1")
    assert packed == bundle.packed({"START.html": "<p>开始", "zh/a.ipynb": "{}"}, "course-1")
    entries = zipfile.ZipFile(io.BytesIO(packed)).infolist()
    assert [entry.filename for entry in entries] == ["course-1/START.html", "course-1/zh/a.ipynb"]
    assert {(entry.date_time, entry.external_attr >> 16, entry.compress_type) for entry in entries} == {
        ((1980, 1, 1, 0, 0, 0), 0o100644, zipfile.ZIP_STORED)
    }


def test_the_command_writes_one_zip_named_after_the_version(tmp_path, monkeypatch, capsys):
    from autograde.__main__ import main

    monkeypatch.setattr(bundle, "ROOT", tmp_path)
    monkeypatch.setattr(bundle, "bundle_files", lambda: {"START.html": "x"})
    assert main(["bundle"]) == 0
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)[1]
    assert capsys.readouterr().out == f"build/unequal-serving-course-{version}.zip\n"
    made, = (tmp_path / "build").iterdir()
    assert zipfile.ZipFile(made).namelist() == [f"unequal-serving-course-{version}/START.html"]


@pytest.mark.slow
def test_unpacked_alone_without_a_network_and_ipywidgets_it_runs(files, tmp_path):
    """`jupyter nbconvert` comes with JupyterLab; what the course itself brings along is hidden or not there."""
    zipfile.ZipFile(io.BytesIO(bundle.packed(files, "course"))).extractall(tmp_path)
    folder, name = tmp_path / "course" / "en", "39a_inference_fallback_and_tiers.ipynb"
    for package in ("ipywidgets", "nbgrader"):
        (folder / f"{package}.py").write_text("raise ModuleNotFoundError")
    convert = ["-m", "nbconvert", "--to", "notebook", "--execute", "--allow-errors", "--inplace"]
    with needed():
        run = environments.run_alone(environments.current(), folder, [*convert, name])
    assert run.returncode == 0, run.stderr[-2000:]
    cells = json.loads((folder / name).read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    errors = [output["evalue"] for output in outputs if output["output_type"] == "error"]
    assert len(errors) == 12 and all("not done yet" in error for error in errors)
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 2 and not any("widget-view" in str(output.get("data")) for output in outputs)
    assert [output for output in outputs if output.get("name") == "stderr"] == []
