"""Everything in the repository that is generated: write it, or say where it is out of step."""
import json
from itertools import count, zip_longest

from autograde import build, git, lint, settings
from autograde.badges import colab_badge, notebook_path
from autograde.chapter import LANGUAGES, display, load_chapters
from autograde.errors import InputError
from autograde.paths import COURSE, MY_WORK, ROOT, SAMPLE_CLASS
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
    """Bring all generated files up to date, and remove those that nothing generates any more.

    Returns the faults of the chapters, one line each; where there are any, nothing is written. Raises InputError
    on the branch of the solved notebooks, which would all be overwritten.
    """
    if git.answer("symbolic-ref", "--short", "--quiet", "HEAD") == settings.SOLUTIONS_BRANCH:
        raise InputError(
            f"the branch {settings.SOLUTIONS_BRANCH} is checked out, whose notebooks are solved: `git switch "
            f"{settings.BRANCH}` to build"
        )
    faults = _faults()
    if faults:
        return faults
    made = files()
    for path, data in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_bytes() == data:
            continue
        if COURSE in path.parents and path.is_file() and _worked_in(path):
            _save_work(path)
        path.write_bytes(data)
    for path in _leftovers(made):
        path.unlink()
    return []


def problems():
    """One line for each fault of a chapter and each generated file that is not what the sources give."""
    faults = _faults()
    if faults:
        return faults  # what a faulty source would generate is of no interest
    made = files()
    found = [
        f"{display(path)}{_first_difference(path, data)}; run `make build`"
        for path, data in made.items()
        if not path.is_file() or path.read_bytes() != data
    ]
    return found + [f"{display(path)}: nothing generates this file; run `make build`" for path in _leftovers(made)]


def _faults():
    return [problem for chapter in load_chapters() for problem in lint.problems(chapter)]


def _worked_in(path):
    """Has somebody run cells of this notebook? A generated one holds no outputs."""
    try:
        cells = json.loads(path.read_bytes())["cells"]
        return any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    except (ValueError, KeyError, TypeError, AttributeError):
        return True


def _save_work(path):
    """Move a learner's work out of the way of the new notebook: it is never overwritten."""
    target = MY_WORK / path.relative_to(COURSE)
    target.parent.mkdir(parents=True, exist_ok=True)
    number = next(n for n in count(1) if not target.with_stem(f"{target.stem}-saved-{n}").exists())
    saved = path.rename(target.with_stem(f"{target.stem}-saved-{number}"))
    print(f"{display(path)}: somebody worked in it; kept as {display(saved)}")


def _leftovers(made):
    # A notebook saves a learner's measurements beside itself: only notebooks are ours to remove there.
    there = {*COURSE.rglob("*.ipynb"), *(path for path in SAMPLE_CLASS.rglob("*") if path.is_file())}
    return sorted(path for path in there - set(made) if ".ipynb_checkpoints" not in path.parts)


def _first_difference(path, data):
    if not path.is_file():
        return ": missing"
    if path.suffix != ".ipynb":
        return ": out of step with the sources"
    try:
        found = json.loads(path.read_bytes())["cells"]
        wanted = json.loads(data)["cells"]
    except (ValueError, KeyError, TypeError, AttributeError):
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
    titles = [title(chapter, language) for language in LANGUAGES]
    todos = ", ".join(f"`{name}`" for todo in chapter.todos for name in todo.functions)
    links = [
        f"[{language}]({notebook_path(chapter.name, language)}) {colab_badge(chapter.name, language)}"
        for language in LANGUAGES
    ]
    return f"| {'<br>'.join(titles)} | {todos} | {' | '.join(links)} |"


def title(chapter, language):
    """The chapter's title in this language, as its first cell has it."""
    first = next(cell for cell in build.source_notebook(chapter, language).cells if cell.cell_type == "markdown")
    return first.source.split("\n")[0].lstrip("# ")
