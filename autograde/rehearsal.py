"""Run a chapter's functions and test cells in one plain namespace, without a kernel: fast, for our own code only."""
from autograde import build, inline
from autograde.chapter import nbgrader

_CHECKS = {"checks": ["case", "check", "declare_todos", "demo", "hidden_rng", "scorecard", "why"]}


def cells_to_run(chapter, *, solved, hidden=True):
    """[(grade_id, is_test, code)] in order: the toolkit's checks, then every nbgrader cell of the chapter.

    `solved`: grade ids of the TODOs that hold their solution, the others stay stubs. `hidden`: with hidden tests.
    """
    source = build.source_notebook(chapter, "en").cells
    release = build.release_notebook(chapter, "en").cells
    # Only the checks: the other helpers import numpy and matplotlib, which no check needs.
    tools = inline.as_module(f"{inline.inlined(_CHECKS)}\n{build.declaration(chapter)}", _CHECKS["checks"])
    cells = [("toolkit", False, tools)]
    for full, released in zip(source, release, strict=True):
        meta = nbgrader(full)
        if full.cell_type != "code" or not meta or meta["grade_id"] == "toolkit":
            continue
        # Cells that are given are the same in both.
        complete = hidden if meta["grade"] else meta["grade_id"] in solved
        cells.append((meta["grade_id"], meta["grade"], (full if complete else released).source))
    return cells


def rehearse(cells, *, override=None, names=None):
    """{test_id: None when it passed, else the error's type and line} of a run of what `cells_to_run` gave.

    `override`: {grade_id: code that runs right behind that cell}; `names`: further globals for all cells.
    """
    namespace, lines = {"__name__": "__main__", **(names or {})}, {}
    for grade_id, is_test, code in cells:
        if is_test:
            lines[grade_id] = _failed_line(code, namespace)
        else:
            exec(code, namespace)
            exec((override or {}).get(grade_id, ""), namespace)
    return lines


def _failed_line(code, namespace):
    try:
        exec(code, namespace)
    except (AssertionError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return None
