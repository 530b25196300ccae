"""Read a chapter: one jupytext percent script under `solutions/`, the only place where it is written.

Roles of cells, told by their tags: `zh` and `en` Markdown twins (the Chinese one first), `answer` twins
that only the solved notebook shows, `wrong` and `right` variants of a TODO that no notebook shows.
Every other cell reaches the learner.
"""
import re
from dataclasses import dataclass, replace
from pathlib import Path

import jupytext
from nbformat.v4 import new_code_cell, new_markdown_cell

from autograde.errors import InputError
from autograde.paths import ROOT, SOLUTIONS

LANGUAGES = ("zh", "en")
VARIANTS = ("wrong", "right")


@dataclass(frozen=True)
class Todo:
    """One TODO: its label ("T2"), grade id ("handoff") and the points of its test cells by grade id."""

    label: str
    grade_id: str
    functions: tuple
    tests: dict

    @property
    def title(self):
        return self.grade_id

    @property
    def points(self):
        return sum(self.tests.values())


@dataclass(frozen=True)
class Variant:
    """A wrong answer (with the hint that it must trigger) or another right form of one TODO."""

    kind: str
    todo: str
    name: str
    hint: str
    source: str


@dataclass(frozen=True)
class Chapter:
    """A chapter's cells in order, and what they declare."""

    name: str
    path: Path
    cells: tuple
    todos: tuple
    variants: tuple

    def where(self, cell):
        """Words that name a cell in an error message."""
        number = next(number for number, one in enumerate(self.cells) if one is cell)
        grade_id, name = nbgrader(cell).get("grade_id"), cell.metadata.get("name")
        first = cell.source.strip().split("\n")[0][:60]
        title = f"grade id {grade_id}" if grade_id else f"variant {name}" if name else f"{first!r}"
        lines = self.path.read_text(encoding="utf-8").split("\n")
        starts = [number for number, line in enumerate(lines, 1) if line.startswith("# %%")]
        place = f"line {starts[number]}, " if len(starts) == len(self.cells) else ""
        return f"{display(self.path)}, {place}cell {number + 1} ({title})"


def load_chapters():
    """All chapters under `solutions/`, by name."""
    return [load_chapter(path) for path in sorted(SOLUTIONS.glob("[0-9]*.py"))]


def load_chapter(path):
    """Parse one chapter script. Raises InputError where a cell cannot be understood."""
    path = Path(path)
    try:
        notebook = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    except FileNotFoundError:
        raise InputError(f"{display(path)}: no such chapter script") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{display(path)}: not UTF-8: {error}") from None
    for cell in notebook.cells:
        cell.metadata.pop("lines_to_next_cell", None)
    cells = tuple(notebook.cells)
    _check_metadata(Chapter(path.stem, path, cells, (), ()))
    chapter = Chapter(path.stem, path, cells, _todos(cells), ())
    return replace(chapter, variants=tuple(_variants(chapter)))


def _check_metadata(chapter):
    """Refuse nbgrader metadata without which nothing else could be said of a chapter."""
    if not any(cell.cell_type == "markdown" for cell in chapter.cells):
        raise InputError(f"{display(chapter.path)}: no Markdown cells; expected a jupytext percent script")
    for cell in chapter.cells:
        meta = nbgrader(cell)
        if "nbgrader" in cell.metadata and not (isinstance(meta, dict) and isinstance(meta.get("grade_id"), str)):
            raise InputError(f"{chapter.where(cell)}: nbgrader metadata without a grade_id: {meta!r}")
        points = meta.get("points") if meta.get("grade") else 1
        if not isinstance(points, (int, float)) or points <= 0:
            raise InputError(f"{chapter.where(cell)}: points: found {points!r}, expected a number above 0")


def nbgrader(cell):
    """The nbgrader metadata of a cell, empty where it has none."""
    return cell.metadata.get("nbgrader", {})


def tags(cell):
    """The tags of a cell as a set."""
    return set(cell.metadata.get("tags", []))


def display(path):
    """A path as messages name it: relative to the repository where it lies inside."""
    path = Path(path)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def solved(source):
    """A solution cell without its markers and without the stub's raise behind the solution."""
    source = re.sub(r"^.*### END SOLUTION.*\n\s*raise NotImplementedError\(.*\)\n?", "", source, flags=re.M)
    return re.sub(r"^.*### (BEGIN|END) SOLUTION.*\n?", "", source, flags=re.M).rstrip("\n")


def defined_functions(source):
    """Names of the functions that a cell defines at top level; works on broken code too."""
    return tuple(re.findall(r"^def\s+(\w+)", source, re.M))


def _todos(cells):
    solutions = [cell for cell in cells if nbgrader(cell).get("solution")]
    tests = [cell for cell in cells if nbgrader(cell).get("grade")]
    ids = [nbgrader(cell)["grade_id"] for cell in solutions]

    def owner(test_id):
        # The longest grade id wins, so that `test_pool_size` may belong to `pool_size` beside `pool`.
        fits = [i for i in ids if test_id == f"test_{i}" or test_id.startswith(f"test_{i}_")]
        return max(fits, key=len, default=None)

    points = {grade_id: {} for grade_id in ids}
    for cell in tests:
        test_id = nbgrader(cell)["grade_id"]
        if owner(test_id):
            points[owner(test_id)][test_id] = nbgrader(cell)["points"]
    return tuple(
        Todo(f"T{number}", grade_id, defined_functions(cell.source), points[grade_id])
        for number, (grade_id, cell) in enumerate(zip(ids, solutions, strict=True), 1)
    )


def _variants(chapter):
    for cell in chapter.cells:
        for kind in tags(cell) & set(VARIANTS):
            metadata = cell.metadata
            wanted = ("todo", "name", "hint") if kind == "wrong" else ("todo", "name")
            missing = [key for key in wanted if not metadata.get(key)]
            if missing:
                raise InputError(f"{chapter.where(cell)}: a cell tagged {kind!r} needs {', '.join(missing)}")
            if metadata["todo"] not in [todo.grade_id for todo in chapter.todos]:
                raise InputError(
                    f"{chapter.where(cell)}: todo={metadata['todo']!r} is not one of "
                    f"{[todo.grade_id for todo in chapter.todos]}"
                )
            source = _edited(chapter, cell) if "edits" in metadata else cell.source
            yield Variant(kind, metadata["todo"], metadata["name"], metadata.get("hint", ""), source)


def _edited(chapter, cell):
    """The solution of the variant's TODO with its edits ([[old, new], …]) made: one slip of the pen, nothing else."""
    solution = next(c for c in chapter.cells if nbgrader(c).get("grade_id") == cell.metadata["todo"])
    source = solved(solution.source)
    for old, new in cell.metadata["edits"]:
        places = source.count(old)
        if places != 1:
            raise InputError(
                f"{chapter.where(cell)}: the edit {old!r} matches {places} places of the solution, expected 1"
            )
        source = source.replace(old, new)
    return source


def is_variant(cell):
    """Is this cell a wrong answer or another right form, which no notebook shows?"""
    return bool(tags(cell) & set(VARIANTS))


def in_language(cell, language):
    """Does a notebook in this language hold the cell? Variants are in none."""
    languages = tags(cell) & set(LANGUAGES)
    return not is_variant(cell) and (not languages or language in languages)


def is_answer(cell):
    """Is this cell shown in the solved notebook only?"""
    return "answer" in tags(cell)


def copy_cell(cell):
    """A cell of our own to change, without the tags that steer the build."""
    metadata = {key: value for key, value in cell.metadata.items() if key != "tags"}
    kept = [tag for tag in cell.metadata.get("tags", []) if tag not in (*LANGUAGES, *VARIANTS, "answer")]
    if kept:
        metadata["tags"] = kept
    make = new_code_cell if cell.cell_type == "code" else new_markdown_cell
    return make(cell.source, metadata=metadata)
