"""The README's pictures: chapter 39b in JupyterLab, half way through, in each language.

`python -m autograde.screenshots` writes them into .github/images.
"""
import io
import subprocess
import sys
import tempfile
from pathlib import Path

from autograde import build
from autograde.browser import chromium, jupyter_lab, run_notebook
from autograde.chapter import LANGUAGES, load_chapters, nbgrader
from autograde.errors import InputError
from autograde.paths import ROOT

IMAGES = ROOT / ".github" / "images"
CHAPTER, TODO, MISTAKE = "39b_hetero_pd_and_serving_tiers", "handoff", "bytes-not-bits"
PANEL = "decision_map_panel"
COLOURS = 256  # half the size, and nobody sees it
# Picture's name -> the cell to look at, by what it shows, and how far below the notebook's upper edge.
VIEWS = {
    "chapter": (".jp-CodeCell:has-text('[T2]')", 190),
    "decision-map": (".jp-CodeCell:has(.panel-still-decisions)", 6),
}


def main():
    """Write the pictures; returns the exit status: 2, with a line that says why, when they cannot be made."""
    try:
        with chromium() as browser:
            for path in take(browser, IMAGES):
                print(path.relative_to(ROOT))
    except InputError as error:
        print(f"screenshots: {error}", file=sys.stderr)
        return 2
    return 0


def take(browser, folder):
    """Write the pictures into a folder and return their paths. Raises InputError where Chinese cannot be drawn."""
    require_chinese_font()
    paths = []
    with tempfile.TemporaryDirectory() as place, jupyter_lab(place) as address:
        for language in LANGUAGES:
            name = f"{CHAPTER}-{language}.ipynb"
            (Path(place) / name).write_text(build.text(half_done(language)), encoding="utf-8")
            page = browser.new_page(viewport={"width": 1200, "height": 890})
            run_notebook(page, address, name, [f"{selector} .jp-OutputArea-output" for selector, _ in VIEWS.values()])
            page.wait_for_function("!document.querySelector('.jp-Notebook').innerText.includes('[*]')")
            page.evaluate("jupyterapp.shell.collapseLeft(), jupyterapp.shell.currentWidget.content.activeCellIndex = 0")
            for picture, (selector, offset) in VIEWS.items():
                path = folder / f"{picture}-{language}.png"
                path.write_bytes(_smaller(_view(page, page.query_selector(selector), offset)))
                paths.append(path)
            page.close()
    return paths


def require_chinese_font():
    """Without one a browser draws each Chinese character as a box: InputError."""
    try:
        found = subprocess.run(["fc-list", ":lang=zh", "family"], capture_output=True, check=False).stdout.strip()
    except FileNotFoundError:
        found = b""
    if not found:
        raise InputError("fc-list finds no Chinese font, characters would be boxes: apt install fonts-wqy-microhei")


def half_done(language):
    """The learner's notebook up to the picture of their decisions, with one TODO answered, and wrong."""
    chapter = next(chapter for chapter in load_chapters() if chapter.name == CHAPTER)
    notebook = build.release_notebook(chapter, language)
    last = next(i for i, cell in enumerate(notebook.cells) if f"display({PANEL}(" in cell.source)
    notebook.cells = notebook.cells[:last + 3]  # what follows would be measured, or is not in the picture
    wrong = next(one.source for one in chapter.variants if (one.todo, one.name) == (TODO, MISTAKE))
    next(cell for cell in notebook.cells if nbgrader(cell).get("grade_id") == TODO).source = wrong
    return notebook


def _view(page, cell, offset):
    """PNG of the notebook, scrolled so that the cell stands `offset` pixels below its upper edge."""
    cell.evaluate("""(cell, offset) => {
      const outer = cell.closest('.jp-WindowedPanel-outer');
      outer.scrollTop += cell.getBoundingClientRect().top - outer.getBoundingClientRect().top - offset;
    }""", offset)
    page.wait_for_timeout(500)
    return page.query_selector(".jp-NotebookPanel").screenshot()


def _smaller(png):
    from PIL import Image

    small = io.BytesIO()
    image = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    image.save(small, "png", optimize=True)
    return small.getvalue()


if __name__ == "__main__":
    sys.exit(main())
