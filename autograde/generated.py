"""Everything in the repository that is generated: write it, or say where it is out of step."""
import json
from itertools import zip_longest

from autograde import build, lint
from autograde.chapter import LANGUAGES, display, load_chapters
from autograde.paths import COURSE, ROOT, SAMPLE_CLASS
from autograde.samples import sample_submissions

README = ROOT / "README.md"
TABLE = ("<!-- chapters: written by `make build` -->", "<!-- /chapters -->")


def files():
    """{path: bytes} of all generated files: learner notebooks, the sample class, README's chapter table."""
    made = {path: text.encode() for path, text in build.course_files().items()}
    made |= {SAMPLE_CLASS / name: data for name, data in sample_submissions().items()}
    made[README] = _readme().encode()
    return made


def write():
    """Bring all generated files up to date, and remove those that nothing generates any more."""
    made = files()
    for path, data in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != data:
            path.write_bytes(data)
    for path in _leftovers(made):
        path.unlink()


def problems():
    """One line for each fault of a chapter and each generated file that is not what the sources give."""
    found = [problem for chapter in load_chapters() for problem in lint.problems(chapter)]
    if found:
        return found  # what a faulty source would generate is of no interest
    made = files()
    found += [
        f"{display(path)}{_first_difference(path, data)}; run `make build`"
        for path, data in made.items()
        if not path.is_file() or path.read_bytes() != data
    ]
    return found + [f"{display(path)}: nothing generates this file; run `make build`" for path in _leftovers(made)]


def _leftovers(made):
    folders = (COURSE, SAMPLE_CLASS)
    there = {path for folder in folders for path in folder.rglob("*") if path.is_file()}
    return sorted(path for path in there - set(made) if ".ipynb_checkpoints" not in path.parts)


def _first_difference(path, data):
    if not path.is_file():
        return ": missing"
    if path.suffix != ".ipynb":
        return ": out of step with the sources"
    try:
        found = json.loads(path.read_bytes())["cells"]
        wanted = json.loads(data)["cells"]
    except (ValueError, KeyError):
        return ": not a readable notebook"
    for number, (mine, theirs) in enumerate(zip_longest(found, wanted), 1):
        if mine != theirs:
            return f", cell {number} (id {(mine or theirs).get('id')}): not what solutions/ gives"
    return ": notebook metadata differ from what solutions/ gives"


def _readme():
    """README.md with its chapter table brought up to date."""
    text = README.read_text(encoding="utf-8")
    begin, end = (text.index(mark) for mark in TABLE)
    rows = "\n".join(_row(chapter) for chapter in load_chapters())
    head = "| chapter · 章节 | TODO | 中文 | English |\n| --- | --- | --- | --- |"
    return f"{text[:begin]}{TABLE[0]}\n{head}\n{rows}\n{text[end:]}"


def _row(chapter):
    titles = [_title(chapter, language) for language in LANGUAGES]
    todos = ", ".join(f"`{name}`" for todo in chapter.todos for name in todo.functions)
    links = [
        f"[{language}](course/{language}/{chapter.name}/{chapter.name}.ipynb) "
        f"{build.colab_badge(chapter.name, language)}"
        for language in LANGUAGES
    ]
    return f"| {'<br>'.join(titles)} | {todos} | {' | '.join(links)} |"


def _title(chapter, language):
    first = next(cell for cell in build.source_notebook(chapter, language).cells if cell.cell_type == "markdown")
    return first.source.split("\n")[0].lstrip("# ")
