"""One zip for a classroom without a network: the learner notebooks and a page that says how to start.

The same to the byte wherever it is made: fixed dates and modes, and no compression, which differs between zlibs.
"""
import io
import zipfile
from importlib.metadata import version

from jinja2 import Environment, FileSystemLoader

from autograde import badges, build, settings
from autograde.chapter import LANGUAGES, load_chapters
from autograde.generated import title
from autograde.paths import AUTOGRADE, ROOT

NAME = "unequal-serving-course"


def write_bundle():
    """Write the zip into `build/`; returns its path from the repository's root."""
    path = ROOT / "build" / f"{NAME}-{version(NAME)}.zip"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(packed(bundle_files(), path.stem))
    return path.relative_to(ROOT)


def bundle_files():
    """{name: text} of what the zip holds; START.html comes first."""
    chapters = load_chapters()
    files = {"START.html": _page(chapters)}
    for language in LANGUAGES:
        for chapter in chapters:
            files[_place(chapter, language)] = build.text(build.release_notebook(chapter, language))
    for licence in ("LICENSE", "LICENSE-TEXT"):  # with an ending, so that a double click opens them
        files[f"{licence}.txt"] = (ROOT / licence).read_text(encoding="utf-8")
    return files


def packed(files, folder):
    """Bytes of a zip that unpacks these files ({name: text}) into one folder."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(f"{folder}/{name}")  # of 1 January 1980
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            archive.writestr(entry, text.encode())
    return data.getvalue()


def _place(chapter, language):
    return f"{language}/{chapter.name}.ipynb"


def _page(chapters):
    rows = [
        {language: (title(chapter, language), _place(chapter, language)) for language in LANGUAGES}
        for chapter in chapters
    ]
    environment = Environment(
        loader=FileSystemLoader(AUTOGRADE / "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("start.html.j2").render(
        chapters=rows, version=version(NAME),
        packages=" ".join(["jupyterlab", *(name for name in build.PACKAGES if name != "torch"), "ipywidgets"]),
        solved=f"{badges.repository()}/tree/{settings.SOLUTIONS_BRANCH}/course",
    ) + "\n"
