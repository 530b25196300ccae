"""The notebooks as a learner has them: in JupyterLab, in a browser, answered and moved with the keyboard."""
import re
import shutil

import pytest
from browsing import HOSTILE, hard_to_read, headless, watched_page
from grading import POOLS, TIERS, chapter_named, hand_in_whole, solved_text
from PIL import Image

from autograde import build, screenshots
from autograde.browser import change_theme, jupyter_lab, run_cells, run_notebook
from autograde.chapter import LANGUAGES, load_chapters, nbgrader
from autograde.grade import grade_class
from autograde.paths import COURSE
from autograde.samples import sample_submissions
from autograde.sandbox import sandbox_available

pytestmark = pytest.mark.slow
PANELS = {"39a": ["tiers", "policy"], "39b": ["tiers", "decisions", "crossover", "destinations"]}
SAYS = {  # what the line of a panel, with the right answers, says to begin with
    "tiers": "thresholds 2048 / 256 tokens: ",
    "policy": "(no alarm): your function chooses keep_current_plan.",
    "decisions": "its transfer_ms: right; 0% of the map disagrees with the boundary.",
    "crossover": "CPU tensor: MHA, 8 kv heads (recompute: measured here)",
    "destinations": "Your route: reroute, pool-B, recompute; reasons: kv_layout_mismatch; ",
}
BADGES = ("https://colab.research.google.com/assets/colab-badge.svg", "https://img.shields.io/badge/ModelScope-")
SCORECARD = ".jp-CodeCell:has(table caption)"
THEMES = ("JupyterLab Light", "JupyterLab Dark")
NOTEBOOKS = [
    pytest.param(chapter, language, id=f"{chapter.name[:3]}-{language}")
    for chapter in load_chapters() for language in LANGUAGES
]
VERDICTS = """() => Object.fromEntries(jupyterapp.shell.currentWidget.content.widgets
  .filter(cell => cell.model.getMetadata('nbgrader')?.grade)
  .map(cell => [cell.model.id, cell.node.querySelector('.jp-Cell-outputArea').innerText.trim()]))"""
# A panel's pictures, its line, and where things stand; null while a picture is just being replaced.
STATE = """cell => {
  const images = [...cell.querySelectorAll('img')].filter(image => image.checkVisibility());
  if (!images.length || images.some(image => !image.complete || !image.naturalWidth)) return null;
  let pixels = 0;
  for (const image of images) {
    const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight), context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    pixels = context.getImageData(0, 0, canvas.width, canvas.height).data
      .reduce((sum, value, i) => (sum * 31 + value * (i % 251)) % 1000000007, pixels);
  }
  return {pixels, text: cell.querySelector('.jupyter-widgets [role=status]').innerText};
}"""
# In how many rows the pictures stand, and which labels of controls do not fit their place.
LAID_OUT = """cell => ({
  rows: new Set([...cell.querySelectorAll('img')].filter(image => image.checkVisibility())
    .map(image => Math.round(image.getBoundingClientRect().top))).size,
  cut: [...cell.querySelectorAll('.jupyter-widgets label, .jupyter-widgets label *')]
    .filter(label => label.checkVisibility() && label.scrollWidth > label.clientWidth && label.clientWidth > 0)
    .map(label => label.innerText),
})"""
# From now on, where the pictures and this control stand in the window.
FOLLOW = """([cell, control]) => {
  const images = [...cell.querySelectorAll('img')].filter(image => image.checkVisibility());
  const watched = window.watched = {images, places: new Set()};
  const follow = () => {
    if (window.watched !== watched) return;
    watched.places.add([...images, control.closest('.widget-inline-hbox, .jupyter-widget-inline-hbox')]
      .map(one => one.getBoundingClientRect()).map(box => [box.x, box.y, box.width, box.height].map(Math.round))
      .join(' '));
    requestAnimationFrame(follow);
  };
  follow();
}"""
FOLLOWED = """cell => {
  const {images, places} = window.watched;
  window.watched = null;
  const now = [...cell.querySelectorAll('img')].filter(image => image.checkVisibility());
  return {kept: now.length === images.length && now.every((image, i) => image === images[i]), places: [...places]};
}"""
# The keys that move a control one step, and those that take it back. JupyterLab takes arrow keys away from a list
# that is not open.
KEYS = """control => {
  const there = control.tagName === 'SELECT' ? [' ', 'ArrowDown', 'Enter'] : ['ArrowRight'];
  const back = control.tagName === 'SELECT' ? [' ', 'ArrowUp', 'Enter'] : ['ArrowLeft'];
  const last = control.tagName === 'SELECT' ? control.selectedIndex + 1 === control.length
                                            : control.ariaValueNow === control.ariaValueMax;
  return control.type === 'checkbox' ? [[' '], [' ']] : last ? [back, there] : [there, back];
}"""
SLIDER, LIST, BOX = ".noUi-handle", "select", "input[type=checkbox]"


@pytest.fixture(scope="module")
def browser():
    with headless() as driven:
        yield driven


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    for chapter in load_chapters():
        for language in LANGUAGES:
            shutil.copy(COURSE / language / chapter.name / f"{chapter.name}.ipynb",
                        folder / f"{chapter.name[:3]}-{language}.ipynb")
    with jupyter_lab(folder) as address:
        yield address


def wait_for(page, cell, condition, before):
    page.wait_for_function(
        f"([cell, old]) => {{ const now = ({STATE})(cell); return now && {condition}; }}", arg=[cell, before],
        timeout=30_000,
    )


def press(page, keys):
    for key in keys:
        page.keyboard.press(key)


def move(page, cell, control, change):
    """Press a key on a control and take it back: `change` comes and goes, and nothing else moves meanwhile."""
    control.focus()
    before = page.evaluate(STATE, cell)
    there, back = control.evaluate(KEYS)
    page.evaluate(FOLLOW, [cell, control])
    press(page, there)
    wait_for(page, cell, change, before)
    press(page, back)
    wait_for(page, cell, "now.text === old.text && now.pixels === old.pixels", before)
    followed = page.evaluate(FOLLOWED, cell)
    assert followed["kept"] and len(followed["places"]) == 1, followed


def panel_cells(page):
    """[(panel's name, its cell)] from the top of the notebook."""
    cells = page.query_selector_all(".jp-CodeCell:has([class^=panel-still-])")
    stills = [cell.query_selector("[class^=panel-still-]").get_attribute("class") for cell in cells]
    return [(still.removeprefix("panel-still-"), cell) for still, cell in zip(stills, cells)]


def assert_readable_in_both_themes(page):
    for theme in reversed(THEMES):
        change_theme(page, theme)
        assert hard_to_read(page, ".jp-OutputArea-output") == [], theme


@pytest.mark.parametrize(("chapter", "language"), NOTEBOOKS)
def test_a_learner_opens_runs_answers_and_moves(browser, lab, chapter, language):
    answers = {cell.id: cell.source for cell in build.solved_notebook(chapter, language).cells
               if nbgrader(cell).get("solution")}
    labels = {test_id: todo.label for todo in chapter.todos for test_id in todo.tests}
    most = sum(todo.points for todo in chapter.todos)
    with watched_page(browser) as (page, complaints, outside):
        run_notebook(page, lab, f"{chapter.name[:3]}-{language}.ipynb", [SCORECARD])
        assert page.evaluate(VERDICTS) == {
            test_id: f"[{label}] not done yet · 尚未完成" for test_id, label in labels.items()
        }
        assert f"sum · 合计\t0 / {most:g}" in page.inner_text(SCORECARD)
        for _, cell in panel_cells(page):
            move(page, cell, cell.query_selector(SLIDER), "now.pixels !== old.pixels")
        assert_readable_in_both_themes(page)

        # The measuring cells need not run again.
        run_cells(page, r"^#@title \[T|_panel\(|scorecard\(\)", answers)
        verdicts = page.evaluate(VERDICTS)
        for test_id, label in labels.items():
            assert re.fullmatch(rf"\[{label}\] ok( · [\w ]+)?", verdicts[test_id]), verdicts[test_id]
        assert f"sum · 合计\t{most:g} / {most:g}" in page.inner_text(SCORECARD)
        panels = panel_cells(page)
        assert [name for name, _ in panels] == PANELS[chapter.name[:3]]
        for name, cell in panels:
            assert SAYS[name] in page.evaluate(STATE, cell)["text"]
            for kind in (SLIDER, LIST, BOX):
                if control := cell.query_selector(kind):
                    move(page, cell, control, "now.text !== old.text && now.pixels !== old.pixels")
        assert_readable_in_both_themes(page)
        page.set_viewport_size({"width": 1180, "height": 1000})  # narrower than the widest panel
        for name, cell in panels:
            assert page.evaluate(LAID_OUT, cell) == {"rows": 1, "cut": []}, name
    assert complaints == []
    assert {url for url in outside if not url.startswith(BADGES)} == set()


# nbgrader's extensions of JupyterLab

@pytest.fixture(scope="module")
def course(browser, tmp_path_factory):
    """JupyterLab over a graded class: (address, folder). Of the learners one is hostile."""
    if why_not := sandbox_available():
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("course")
    for path, text in sample_submissions().items():
        if path.split("/")[0] in ("王小明", "李雷"):
            (folder / "class" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "class" / path).write_bytes(text)
    texts = ["\x1b[31mred", *filter(str.isprintable, HOSTILE)]
    lines = "\n".join(f"print({text!r})  # {text}" for text in texts)
    hand_in_whole(folder / "class", "eve<img src=x onerror='window.__pwned=6'>", TIERS, solved_text(
        chapter_named(TIERS), tiers=f"{lines}\nraise ValueError({HOSTILE[0]!r})",
        policy=f"def select_fallback_policy(state):\n    return {HOSTILE[1]!r}",
    ))
    grade_class(folder / "class", folder / "results")
    with jupyter_lab(folder, config=folder / "results") as address:
        yield address, folder


def rows_of(page, address, path):
    """Texts of the rows of Formgrader's table at this path."""
    page.goto(f"{address[0]}/formgrader/{path}?token={address[1]}")
    page.wait_for_function("document.querySelector('tbody td') && !/Loading/.test(document.body.innerText)")
    return [row.inner_text() for row in page.query_selector_all("tbody tr")]


def test_formgrader_opens_on_the_course_and_runs_nothing_of_a_learner(browser, course):
    address, _ = course
    with watched_page(browser) as (page, complaints, _):
        chapters = rows_of(page, address, "")
        assert [row.split("\t")[0] for row in chapters] == [TIERS, POOLS]
        assert [re.search(r"\t(\d+)\t", row)[1] for row in chapters] == ["3", "2"]  # submissions
        assert "could not be created" not in page.inner_text("body")
        scores = [row.split("\t") for row in rows_of(page, address, "gradebook")]
        assert [(row[0], row[2], row[3]) for row in scores] == [(TIERS, "3", "13.33 / 18"), (POOLS, "2", "21.5 / 24")]
        learners = rows_of(page, address, "manage_students")
        assert [row.split("\t")[3] for row in learners] == ["6 / 42", "35 / 42", "42 / 42"]
        submissions = rows_of(page, address, f"gradebook/{TIERS}/{TIERS}")
        assert sorted(row.split("\t")[2] for row in submissions) == ["16 / 18", "18 / 18", "6 / 18"]
        links = page.evaluate("[...document.querySelectorAll('tbody tr')].map(row => row.querySelector('a').href)")
        for link in links:
            page.goto(link)
            page.wait_for_selector("text=39a · Inference fallback and tiers")
            assert page.evaluate("window.__pwned") is None
    # The page takes MathJax from the network, which is not there.
    assert [one for one in complaints if "MathJax is not defined" not in one] == []


def test_validate_tells_a_solved_notebook_from_a_blank_one(browser, course):
    (base, token), folder = course
    chapter = chapter_named(TIERS)
    (folder / "solved.ipynb").write_text(build.text(build.solved_notebook(chapter, "en")), encoding="utf-8")
    shutil.copy(COURSE / "zh" / TIERS / f"{TIERS}.ipynb", folder / "blank.ipynb")
    for name in ("solved", "blank"):
        with watched_page(browser) as (page, complaints, _):
            page.goto(f"{base}/lab/tree/{name}.ipynb?token={token}&reset")
            page.click(".jp-NotebookPanel >> text='Validate'", timeout=90_000)
            page.wait_for_selector("text=Validation Results", timeout=90_000)
            said = page.inner_text(".jp-Dialog")
        assert complaints == []
        if name == "solved":
            assert "Success! Your notebook passes all the tests." in said
            continue
        tests = [cell.source.split("\n")[0] for cell in build.release_notebook(chapter, "zh").cells
                 if nbgrader(cell).get("grade")]
        assert re.findall("^#@title.*", said, re.M) == tests and len(tests) > 9
        assert said.count("not done yet · 尚未完成") == len(tests)


# The README's pictures

def test_the_readmes_pictures_are_made_and_current(browser, tmp_path):
    committed = sorted(screenshots.IMAGES.glob("*.png"))
    made = sorted(screenshots.take(browser, tmp_path))
    assert [path.name for path in made] == [path.name for path in committed] and len(made) == 2 * len(LANGUAGES)
    for new, old in zip(made, committed):
        assert old.stat().st_size < 150_000 and new.stat().st_size < 150_000
        shares = colour_shares(new)
        assert Image.open(new).size == Image.open(old).size
        # The map's two colours; the red behind the three verdicts that say what is wrong.
        expected = {(0, 114, 178): 0.08, (213, 94, 0): 0.04} if "map" in new.name else {(255, 221, 221): 0.05}
        for colour, least in expected.items():
            assert shares.get(colour, 0) > least and abs(shares[colour] - colour_shares(old).get(colour, 0)) < 0.02, new


def colour_shares(path):
    image = Image.open(path).convert("RGB")
    return {colour: count / (image.width * image.height) for count, colour in image.getcolors(1 << 20)}
