"""What a chapter handed out, as repair.py needs it: code cells by id, and the statements that only it may run."""
import ast
from dataclasses import dataclass, field

from autograde import build, pieces
from autograde.chapter import LANGUAGES, nbgrader

DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign,
            ast.AugAssign, ast.Try, ast.If)
_CACHE = {}


@dataclass(frozen=True)
class Unit:
    """Code of the submission, or of the release, that may run. `at` is its place in the submission."""

    at: float
    source: str
    label: str = ""
    grade_id: str = ""  # that the submitted cell carried
    role: str = "own"
    retyped: bool = False
    error: str = ""
    piece: pieces.Piece = field(default=None, compare=False)

    @property
    def binds(self):
        return self.piece.binds if self.piece else pieces.defined(self.source)


@dataclass(frozen=True)
class ReleasedCell:
    """A code cell as handed out: role "todo", "test", "toolkit", "given" or "demo"."""

    cell_id: str
    role: str
    source: str
    lines: frozenset


@dataclass(frozen=True)
class Release:
    cells: dict  # by cell id
    stubs: dict  # TODO's grade id -> its source as handed out
    shapes: frozenset  # of all statements that only the release may run
    parts: tuple  # units of single statements, from the toolkit cell and the demo cells
    texts: dict  # text of a cell without layout -> its id
    markdown: frozenset


def handed_out(chapter):
    """The Release of a chapter; made once."""
    key = (chapter.name, *(cell.source for cell in chapter.cells))
    if key not in _CACHE:
        _CACHE[key] = _read(chapter)
    return _CACHE[key]


def _read(chapter):
    cells, markdown = {}, set()
    for language in LANGUAGES:
        for cell in build.release_notebook(chapter, language).cells:
            if cell.cell_type == "code":
                lines = frozenset(lines_of(cell.source))
                cells.setdefault(cell.id, ReleasedCell(cell.id, _role(nbgrader(cell)), cell.source, lines))
            else:
                markdown.add(squeezed(cell.source))
    stubs = {cell.cell_id: cell.source for cell in cells.values() if cell.role == "todo"}
    shapes, parts = set(), []
    for cell in cells.values():
        if cell.role == "todo":
            continue
        for first, end, nodes in pieces.spans(cell.source):
            shapes |= {pieces.shape(n) for n in nodes if not isinstance(n, (ast.Import, ast.ImportFrom))}
            if cell.role in ("toolkit", "demo") and isinstance(nodes[0], DEFINES):
                source = "\n".join(cell.source.split("\n")[first:end])
                parts.append(Unit(-1, source, "toolkit" if cell.role == "toolkit" else "", role="release",
                                   piece=pieces.analyse(source)))
    texts = {squeezed(cell.source): cell.cell_id for cell in cells.values()}
    return Release(cells, stubs, frozenset(shapes), tuple(parts), texts, frozenset(markdown))


def _role(meta):
    if meta.get("solution"):
        return "todo"
    if meta.get("grade"):
        return "test"
    return "toolkit" if meta.get("grade_id") == "toolkit" else "given" if meta.get("locked") else "demo"


def lines_of(source):
    """The lines of a source that say something, without indentation and without the fold title."""
    return [line for line in map(str.strip, source.split("\n")) if line and not line.startswith("#@title")]


def squeezed(source):
    """A text without layout, to tell whether a cell is still as it was."""
    return "\n".join(lines_of(source))


def likeness(one, other):
    """Share of lines that two cells have in common."""
    return len(one & other) / (max(len(one), len(other)) or 1)
