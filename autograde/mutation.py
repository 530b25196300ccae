"""Mutation run: every small fault that mutmut plants in a reference solution must fail a test cell."""
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from autograde import build
from autograde.chapter import load_chapters, nbgrader
from autograde.errors import InputError
from autograde.rehearsal import cells_to_run

WANTED = 0.98

# Changes that no check can tell from the solution, as patterns of "old line → new line", and why.
EQUIVALENT = {
    r"raise ValueError\(.*→ raise ValueError\(": "the contract asks for a ValueError, not for the words in it",
    r'(.*)\.get\("healthy", False\)(.*) → \1\.get\("healthy", (None)?\)\2': "a missing health is falsy either way",
    r'(.*)\("queue_delay_ms", 0\.0\)(.*) → \1\("queue_delay_ms", 1\.0\)\2': "1 ms is below the 100 ms trigger too",
}

_CONFIG = """\
[mutmut]
source_paths=solutions.py
pytest_add_cli_args_test_selection=tests/
"""

# Each test cell runs among the solutions' own globals, as in a notebook.
_TESTS = """\
import json
import pathlib
import pytest
import solutions

CELLS = json.loads(pathlib.Path(__file__).with_name("cells.json").read_text(encoding="utf-8"))
exec(CELLS.pop(0)[2], vars(solutions))

@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell[0])
def test_cell(cell):
    exec(cell[2], vars(solutions))
"""


def run(chapter_name=None):
    """Mutate one chapter's solutions or all; print survivors and scores. Returns 0 when the scores suffice, else 1.

    Raises InputError for an unknown chapter, and when mutmut cannot run.
    """
    chapters = [chapter for chapter in load_chapters() if chapter_name in (None, chapter.name)]
    if not chapters:
        known = ", ".join(chapter.name for chapter in load_chapters())
        raise InputError(f"unknown chapter {chapter_name!r}; expected one of {known}")
    console, status = Console(soft_wrap=True, markup=False, highlight=False), 0
    for chapter in chapters:
        total, survivors = mutate(chapter)
        alive = [change for change in survivors if not _why_equivalent(change)]
        score = 1 - len(alive) / total
        console.print(
            f"{chapter.name}: {total} mutants, {total - len(survivors)} killed, {len(survivors) - len(alive)} "
            f"equivalent, {len(alive)} survived; {score:.1%} of at least {WANTED:.0%}"
        )
        for change in survivors:
            console.print(f"  {change}\n    {_why_equivalent(change) or 'SURVIVED: no test cell tells the difference'}")
        status = max(status, int(score < WANTED))
    return status


def mutate(chapter):
    """(number of mutants, [the changed line of each survivor as "old → new"]) of one chapter's solutions."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cells = cells_to_run(chapter, solved=[todo.grade_id for todo in chapter.todos])
        tests = [cell for cell in cells if cell[0] == "toolkit" or cell[1]]
        (folder / "tests").mkdir()
        (folder / "tests" / "cells.json").write_text(json.dumps(tests), encoding="utf-8")
        (folder / "tests" / "test_cells.py").write_text(_TESTS, encoding="utf-8")
        (folder / "setup.cfg").write_text(_CONFIG, encoding="utf-8")
        (folder / "solutions.py").write_text(_solutions(chapter), encoding="utf-8")
        _mutmut(folder, "run")
        results = _mutmut(folder, "results", "--all", "true")
        outcomes = dict(line.strip().rsplit(": ", 1) for line in results.splitlines() if ": " in line)
        survivors = [mutant for mutant, outcome in outcomes.items() if outcome != "killed"]
        return len(outcomes), [_change(_mutmut(folder, "show", mutant)) for mutant in survivors]


def _why_equivalent(change):
    return next((reason for pattern, reason in EQUIVALENT.items() if re.fullmatch(f"{pattern}.*", change)), None)


def _solutions(chapter):
    solved = build.solved_notebook(chapter, "en").cells
    return "\n\n\n".join(cell.source for cell in solved if nbgrader(cell).get("solution")) + "\n"


def _mutmut(folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "mutmut", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InputError(f"mutmut {arguments[0]} failed: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def _change(diff):
    """The changed lines of a unified diff as one text."""
    lines = diff.splitlines()
    old = [line[1:].strip() for line in lines if line.startswith("-") and not line.startswith("---")]
    new = [line[1:].strip() for line in lines if line.startswith("+") and not line.startswith("+++")]
    return f"{' '.join(old)} → {' '.join(new)}"
