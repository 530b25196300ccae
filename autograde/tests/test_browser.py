"""The notebooks as a learner has them: in JupyterLab, in a browser, moved with the keyboard."""
import os

import pytest

from autograde import build
from autograde.browser import chromium, find_browser, jupyter_lab, run_notebook
from autograde.chapter import load_chapters
from autograde.errors import InputError

pytestmark = pytest.mark.slow
LAST_CELL = ".jp-CodeCell:has(table caption)"  # the scorecard
STATE = """selector => {
  const cell = document.querySelector(selector);
  const image = cell.querySelector('img'), canvas = document.createElement('canvas');
  if (!image.naturalWidth) return null;  // just being replaced
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
  return {
    pixels: pixels.reduce((sum, value, i) => (sum * 31 + value * (i % 251)) % 1000000007, 0),
    width: canvas.width,
    text: cell.querySelector("[role=status] p[lang=en]").innerText,
  };
}"""


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium; in CI its absence is an error, elsewhere it skips these tests."""
    try:
        find_browser()
    except InputError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    with chromium() as driven:
        yield driven


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    for chapter in load_chapters():
        for language in ("zh", "en"):
            notebook = build.solved_notebook(chapter, language)
            (folder / f"{chapter.name[:3]}-{language}.ipynb").write_text(build.text(notebook), encoding="utf-8")
    with jupyter_lab(folder) as address:
        yield address


def wait_for(page, cell, condition, before):
    page.wait_for_function(
        f"old => {{ const now = ({STATE})({cell!r}); return now && {condition}; }}", arg=before, timeout=30_000
    )


@pytest.mark.parametrize(("name", "panel", "says"), [
    ("39b-en", "crossover", "CPU tensor: MHA, 8 kv heads (recompute: measured here)"),
    ("39a-zh", "tiers", "thresholds 2048 / 256 tokens"),
])
def test_a_slider_moved_by_keyboard_changes_picture_and_text(browser, lab, name, panel, says):
    page, complaints = browser.new_page(viewport={"width": 1280, "height": 1000}), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    # Badges come from the network, which may be absent.
    page.on("console", lambda message: complaints.append(message.text)
            if message.type == "error" and not message.text.startswith("Failed to load resource") else None)
    cell = f".jp-CodeCell:has(.panel-still-{panel})"
    run_notebook(page, lab, f"{name}.ipynb", [f"{cell} .noUi-handle", f"{cell} img", LAST_CELL])
    page.focus(f"{cell} .noUi-handle")
    before = page.evaluate(STATE, cell)
    assert says in before["text"] and before["width"] > 700
    page.keyboard.press("ArrowRight")
    wait_for(page, cell, "now.text !== old.text && now.pixels !== old.pixels", before)
    page.keyboard.press("ArrowLeft")
    wait_for(page, cell, "now.text === old.text && now.pixels === old.pixels", before)
    assert page.locator(f"{cell} img").count() == 1  # the still picture beside it is hidden
    errors = page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']").count()
    page.close()
    assert complaints == [] and errors == 0
