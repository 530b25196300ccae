"""A pytest plugin for nbval: a failing cell prints where it is and a diff of its output, not a wall of JSON.

`pytest --nbval -p autograde.nbval_report NOTEBOOK…`. Needs nothing but pytest and nbval.
"""
import difflib
import re
import textwrap

import pytest
from nbval.plugin import IPyNbCell, NbCellError

MOST_LINES, WIDTH = 40, 110  # of a diff or a traceback; more lines are counted, not shown
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FENCE = re.compile(r"^```.*?^```", re.M | re.S)


def pytest_configure(config):
    """In CI too pytest's summary does not repeat whole reports."""
    config.option.force_short_summary = True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Replace nbval's report of a failed cell by ours."""
    report = (yield).get_result()
    if isinstance(item, IPyNbCell) and report.failed and call.excinfo.errisinstance(NbCellError):
        report.longrepr = "\n".join(told(item, call.excinfo.value))


def told(item, error):
    """The lines that tell what went wrong in a cell: place, title, reason, and a diff or the end of the traceback."""
    chapter = item.parent.path
    heading, title = titles(item.parent.nb, item.cell)
    yield f"{chapter.stem} ({chapter.parent.parent.name}), [{item.cell_num + 1}] {title}"
    yield f"under: {heading}"
    if str(error) == "Cell outputs differ":
        yield from _cut(_diff(item))
        return
    yield str(error)
    raised = [output for output in item.test_outputs or () if output.output_type == "error"]
    for output in raised:
        yield from _cut(_wrapped(f"{output.ename}: {output.evalue}")[:2])
        yield from _cut(_wrapped("\n".join(output.traceback))[-10:])


def titles(notebook, cell):
    """(the heading above a cell, its grade id with its `#@title`, else its first line)."""
    heading = "no heading"
    for other in notebook.cells:
        if other is cell:
            break
        if other.cell_type == "markdown":
            heading = (re.findall(r"^#{1,6} +(.+)", _FENCE.sub("", other.source), re.M) or [heading])[-1]
    first = next((line.strip() for line in cell.source.splitlines() if line.strip()), "an empty cell")
    names = [cell.metadata.get("nbgrader", {}).get("grade_id"), first.removeprefix("#@title").strip()]
    return heading, ": ".join(name for name in names if name)


def _diff(item):
    """The diff of stored against new output, of what nbval compares."""
    stored, new = (_lines(item, outputs) for outputs in (item.cell.outputs, item.test_outputs))
    diff = difflib.unified_diff(stored, new, "stored output", "new output", n=1, lineterm="")
    return [line for line in diff if not line.startswith("@@")] or ["they differ in line ends only"]


def _lines(item, outputs):
    """Outputs as lines of text, each part under its kind."""
    lines, streams = [], set()
    for output in outputs:
        if output.output_type == "stream":
            if output.name in streams:
                continue  # nbval has added its text to the first of the name
            streams.add(output.name)
        parts = {output.name: output.text} if output.output_type == "stream" else dict(output.get("data", {}))
        if output.output_type == "error":
            parts = {"error": f"{output.ename}: {output.evalue}"}
        for kind, value in sorted(parts.items()):
            if kind not in item.parent.skip_compare:
                text = item.sanitize(value if isinstance(value, str) else str(value))
                if kind == "text/html":  # an element begins a line
                    text = re.sub(r"(?<!^)(?=<[a-z])", "\n", text)
                lines += [f"[{kind}]", *_wrapped(text)]
    return lines


def _wrapped(text):
    """Lines of bounded width, without colours."""
    wrapper = textwrap.TextWrapper(WIDTH, drop_whitespace=False, replace_whitespace=False, tabsize=4)
    return [part for line in _COLOURS.sub("", text).splitlines() for part in wrapper.wrap(line) or [""]]


def _cut(lines):
    yield from lines[:MOST_LINES]
    if len(lines) > MOST_LINES:
        yield f"… and {len(lines) - MOST_LINES} more lines"
