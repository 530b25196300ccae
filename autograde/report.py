"""Tell: marks as CSV files, a page a learner, a page for the class, tables and verdict lines in the terminal.

`class_results` is a list of (learner, chapter, marks, graded) in the order of the pages: chapter is None where none
was recognised, graded is None where nothing was run. A learner's name is that of a folder. Texts of learners are
escaped by the templates, and `_clean` takes out what an escape leaves.
"""
import base64
import csv
import html
import io
import math
import os
import re
import statistics
import textwrap
import warnings
from collections import Counter
from itertools import groupby
from typing import NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autograde.course import write_atomically
from autograde.paths import AUTOGRADE

COLUMNS = ("learner", "chapter", "todo", "points", "max_points", "reason")
CANVAS_COLUMNS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
LONGEST_PRINTED, MOST_LINES = 2000, 40  # characters and lines of what code printed, on a page
MOST_BINS = 13
MOST_HINTS = 5  # of a TODO in the table
PLOTTED_HINTS = 3
SLOWEST = 10
BOM = "\ufeff"

# No text file or page can hold surrogates, no page NUL; the others move a terminal's cursor or turn text around.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


class Failing(NamedTuple):
    """How many of the graded submissions lost points on a TODO; `hints`: [(hint, times)], the most frequent first."""

    chapter: str
    label: str
    todo: str
    graded: int
    failing: int
    hints: list


# CSV files

def write_marks_csv(marks, path):
    """Write one row for each learner, chapter and TODO; a chapter that is not known has one row with no TODO."""
    _write_csv(path, [COLUMNS, *(
        (mark.learner, mark.chapter, mark.todo, f"{mark.points:g}", f"{mark.max_points:g}", mark.reason)
        for mark in marks
    )])


def write_lms_csvs(class_results, folder):
    """Write canvas.csv and moodle.csv into a folder, one row a learner; a chapter not handed in stays empty.

    canvas.csv has the columns that Canvas's gradebook imports: it finds a student by login id or else by name, a
    chapter by the assignment's name. moodle.csv is for Grades > Import > CSV file, which asks what each column is:
    Identifier for the user (as username, email address or ID number), a grade and its feedback, read as HTML, for
    each chapter. Both are UTF-8 with a BOM: Excel needs it, Canvas and Moodle ignore it.
    """
    chapters = _chapters(class_results)
    learners = _by_learner(class_results)
    canvas = [
        (*CANVAS_COLUMNS, *chapters),
        ("    Points Possible", *[""] * 4, *(f"{_most(chapter):g}" for chapter in chapters.values())),
    ]
    headings = [(f"Grade {name}", f"Feedback comments {name}") for name in chapters]
    moodle = [("Full name", "Identifier", *(heading for pair in headings for heading in pair))]
    for learner, results in learners.items():
        of = {chapter.name: (marks, graded) for chapter, marks, graded in results if chapter}
        points = {name: f"{sum(mark.points for mark in marks):g}" for name, (marks, _) in of.items()}
        canvas.append((learner, "", "", learner, "", *(points.get(name, "") for name in chapters)))
        feedback = {name: html.escape(_feedback(*of[name]), quote=False) for name in of}
        pairs = [(points.get(name, ""), feedback.get(name, "")) for name in chapters]
        moodle.append((learner, learner, *(value for pair in pairs for value in pair)))
    _write_csv(folder / "canvas.csv", canvas, BOM)
    _write_csv(folder / "moodle.csv", moodle, BOM)


def _feedback(marks, graded):
    return _problem(marks, graded) or "\n".join(mark.reason for mark in marks)


def _write_csv(path, rows, start=""):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_plain(_clean(cell)) for cell in row] for row in rows)
    write_atomically(path, start + text.getvalue())


def _plain(text):
    """Text that a spreadsheet takes for text and not for a formula; the wide signs start one in some of them."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")) else text


# Pages

def _clean(value):
    """A text without characters that break a file, move a cursor or turn text around: they are named instead."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return _UNSEEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", value.replace("\r\n", "\n"))


def _shortened(text):
    """The start of what code printed."""
    start = "".join(text[:LONGEST_PRINTED].splitlines(keepends=True)[:MOST_LINES])
    return text if start == text else f"{start}\n… 已截断 · shortened"


_templates = Environment(
    loader=FileSystemLoader(AUTOGRADE / "templates"), autoescape=True, finalize=_clean, trim_blocks=True,
    lstrip_blocks=True, auto_reload=False,
)
_templates.filters["shortened"] = _shortened


def write_learner_pages(class_results, folder):
    """Write folder/<learner>/index.html: points, verdicts, the learner's own code, repairs, and what to do."""
    template = _templates.get_template("learner.html.j2")
    for learner, results in _by_learner(class_results).items():
        chapters = [_chapter_view(*result) for result in results]
        points, most = (sum(chapter[key] for chapter in chapters) for key in ("points", "max_points"))
        text = template.render(learner=learner, points=points, max_points=most, chapters=chapters)
        write_atomically(folder / learner / "index.html", text)


def write_class_page(class_results, path, pages="feedback"):
    """Write the instructor's page: marks, distributions, which TODO fails on which hint, repairs, the slowest.

    `pages`: the folder that `write_learner_pages` wrote, relative to the page.
    """
    results = [result for result in class_results if result[1]]
    failing = count_failing(class_results)
    ran = [one for one in results if one[3]]
    repaired = [_entry(one, pages, notes=one[3].notes) for one in ran if one[3].notes]
    slowest = sorted(ran, key=lambda one: -one[3].wall_s)[:SLOWEST]
    chapters = _chapters(class_results)
    text = _templates.get_template("class.html.j2").render(
        submissions=len(class_results),
        unsafe=sum(one[3].unsafe for one in ran),
        chapters=chapters.values(),
        learners=[_row(learner, theirs, chapters, pages) for learner, theirs in _by_learner(class_results).items()],
        distributions=[_distribution(chapter, results) for chapter in chapters.values()],
        failing=[one._replace(hints=_first_hints(one.hints)) for one in failing],
        plot=_plot(failing),
        refused=[
            {"learner": learner, "page": _page(learner, pages), "chapter": chapter, "reason": reason}
            for learner, chapter, reason in not_graded(class_results)
        ],
        repaired=repaired,
        slowest=[_entry(one, pages, wall_s=one[3].wall_s) for one in slowest],
    )
    write_atomically(path, text)


def not_graded(class_results):
    """[(learner, chapter's name, reason)] of the submissions that could not be graded."""
    return [
        (learner, chapter.name if chapter else marks[0].chapter, _problem(marks, graded))
        for learner, chapter, marks, graded in class_results if _problem(marks, graded)
    ]


def count_failing(class_results):
    """A Failing for each TODO, the one that most learners lost points on first; see `hint_of` for the hints.

    Submissions that could not be graded do not count.
    """
    failing = []
    for chapter in _chapters(class_results).values():
        marks = [
            mark for _, one, theirs, graded in class_results
            if one and one.name == chapter.name and not _problem(theirs, graded) for mark in theirs
        ]
        for todo in chapter.todos:
            its = [mark for mark in marks if mark.todo == todo.grade_id]
            hints = Counter(hint_of(todo, mark.reason) for mark in its if mark.points < mark.max_points)
            failing.append(Failing(
                chapter.name, todo.label, todo.grade_id, len(its), hints.total(), hints.most_common()
            ))
    return sorted(failing, key=lambda one: -one.failing)


def hint_of(todo, line):
    """The hint in a verdict line: without the values, the call and the seed, which differ between learners."""
    hint = line.rpartition(" : ")[2].removeprefix(f"[{todo.label}] ")
    ends = [f" · {name}(" for name in todo.functions] + [" · hidden checks · ", " · 完整报错 "]
    return hint[:min((place for place in map(hint.find, ends) if place >= 0), default=None)]


def _first_hints(hints):
    others = sum(times for _, times in hints[MOST_HINTS:])
    return hints[:MOST_HINTS] + ([("其他 · others", others)] if others else [])


def _by_learner(class_results):
    learners = {}
    for learner, *result in class_results:
        learners.setdefault(learner, []).append(result)
    return learners


def _chapters(class_results):
    return {chapter.name: chapter for _, chapter, _, _ in sorted(
        (one for one in class_results if one[1]), key=lambda one: one[1].name
    )}


def _most(chapter):
    return sum(todo.points for todo in chapter.todos)


def _problem(marks, graded):
    """Why a submission could not be graded, else ""."""
    if graded:
        return graded.problem
    return next((mark.reason for mark in marks), "")


def _page(learner, pages):
    # By bytes: a folder's name need not be UTF-8.
    return f"{quote(pages)}/{quote(os.fsencode(learner))}/index.html"


def _entry(result, pages, **more):
    learner, chapter, _, _ = result
    return {"learner": learner, "page": _page(learner, pages), "chapter": chapter.name, **more}


def _chapter_view(chapter, marks, graded):
    problem = _problem(marks, graded)
    points = sum(mark.points for mark in marks)
    todos, rest = _todo_views(chapter, marks, graded) if chapter and graded and not problem else ([], [])
    return {
        "name": chapter.name if chapter else marks[0].chapter,
        "points": points,
        "max_points": sum(mark.max_points for mark in marks),
        "problem": problem,
        "marks": [mark for mark in marks if mark.todo] if points or not problem else [],
        "notes": graded.notes if graded else (),
        "unsafe": graded is not None and graded.unsafe,
        "todos": todos,
        "rest": rest,
    }


def _todo_views(chapter, marks, graded):
    """What a page shows of each TODO, helpers with the answer that follows them; and the cells after all answers."""
    cells, helpers = {}, []
    for cell in graded.cells:
        helpers.append(cell)
        if cell.todo:
            cells.setdefault(cell.todo, []).extend(helpers)
            helpers = []
    by_todo = {mark.todo: mark for mark in marks}
    todos = [{
        "label": todo.label,
        "name": todo.grade_id,
        "mark": by_todo[todo.grade_id],
        "cells": cells.get(todo.grade_id, []),
        "tests": [
            {"aspect": _aspect(todo, test_id), "points": points, **vars(graded.verdicts[test_id])}
            for test_id, points in todo.tests.items() if test_id in graded.verdicts
        ],
    } for todo in chapter.todos]
    return todos, helpers


def _aspect(todo, test_id):
    return test_id.removeprefix(f"test_{todo.grade_id}").strip("_").replace("_", " ") or "主要 · main"


def _row(learner, results, chapters, pages):
    """A learner's line in the marks table."""
    of = {chapter.name: marks for chapter, marks, _ in results if chapter}
    rows = []
    for name, chapter in chapters.items():
        marks = {mark.todo: mark for mark in of.get(name, ())}
        rows.append({
            "marks": [marks.get(todo.grade_id) for todo in chapter.todos],
            "total": sum(mark.points for mark in marks.values()) if marks else None,
        })
    return {"name": learner, "page": _page(learner, pages), "rows": rows, "sum": sum(r["total"] or 0 for r in rows)}


def _distribution(chapter, results):
    """How the totals of a chapter spread: in bins of whole points."""
    most = _most(chapter)
    totals = [sum(mark.points for mark in marks) for _, one, marks, _ in results if one.name == chapter.name]
    width = math.ceil((most + 1) / MOST_BINS)
    # Scores given by hand may lie outside.
    bins = Counter(int(min(max(total, 0), most) // width) for total in totals)
    largest = max(bins.values())
    return {
        "name": chapter.name, "count": len(totals), "most": most, "mean": statistics.mean(totals),
        "median": statistics.median(totals), "full": sum(total >= most for total in totals),
        "bins": [
            {"range": _range(low, min(low + width - 1, most)), "count": bins[low // width],
             "percent": 100 * bins[low // width] / largest}
            for low in range(0, int(most) + 1, width)
        ],
    }


def _range(low, high):
    return f"{low:g}–{high:g}" if high > low else f"{low:g}"


def _plot(failing):
    """The plot as data URIs for light and dark pages, and its words; None where nobody lost points."""
    if not failing or not failing[0].failing:
        return None
    worst = failing[0]
    return {
        "light": _data_uri(failing_figure(failing, "#1f2328", "#c4d3e3", "#4c78a8")),
        "dark": _data_uri(failing_figure(failing, "#e6edf3", "#33475c", "#6ea8de")),
        "alt": f"Bar chart: how many learners lost points on each TODO, and on which hint. Most on {_title(worst)}: "
               f"{worst.failing} of {worst.graded}, {worst.hints[0][1]} of them on: {_english(worst.hints[0][0])}. "
               "The table below has all numbers.",
    }


def failing_figure(failing, text, total, hint):
    """Horizontal bars, in three colours: for each TODO those who lost points, below it its most frequent hints."""
    from matplotlib.figure import Figure  # half a second, which only this page should cost

    bars = []
    for one in failing:
        bars.append((_title(one), one.failing, True))
        bars += [(_english(words), times, False) for words, times in one.hints[:PLOTTED_HINTS]]
    figure = Figure(figsize=(10, 0.9 + 0.3 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    drawn = axes.barh(
        range(len(bars)), [count for _, count, _ in bars], height=[0.8 if top else 0.5 for *_, top in bars],
        color=[total if top else hint for *_, top in bars],
    )
    axes.bar_label(drawn, padding=4, color=text)
    axes.set_yticks(range(len(bars)))
    labels = axes.set_yticklabels([words for words, *_ in bars], parse_math=False)  # a "$" is no formula here
    for label, (*_, top) in zip(labels, bars):
        label.set_fontweight("bold" if top else "normal")
    axes.invert_yaxis()
    axes.margins(x=0.08, y=0.01)
    axes.set_xlabel("learners who lost points", color=text)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(colors=text, length=0)
    axes.spines[:].set_visible(False)
    return figure


def _data_uri(figure):
    from matplotlib import rc_context

    picture = io.BytesIO()
    with rc_context({"svg.hashsalt": "autograde"}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a learner's exception may hold letters that the font lacks
        figure.savefig(picture, format="svg", transparent=True, metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.getvalue()).decode()}"


def _title(one):
    return f"{one.chapter.split('_')[0]} {one.label} {one.todo}"


def _english(hint):
    """The English part of a hint, short; the plot's font has no Chinese."""
    parts = [part for part in _clean(hint).split(" · ") if not re.search("[\u2e80-\uffff]", part)]
    return textwrap.shorten(" · ".join(parts), 64, placeholder=" …") or "(see the table)"


# The terminal

def print_table(marks, refused=()):
    """Print one table a chapter: learners down, TODOs across; then why submissions, as of `not_graded`, have none."""
    console = Console()
    in_order = sorted(marks, key=lambda mark: mark.chapter)  # stable: learners stay in their order
    for chapter, group in groupby((mark for mark in in_order if mark.todo), key=lambda mark: mark.chapter):
        rows = {}
        for mark in group:
            rows.setdefault(mark.learner, {})[mark.todo] = mark
        todos = next(iter(rows.values()))
        table = Table(title=chapter)
        table.add_column("learner", overflow="fold")
        for todo in [*todos, "total"]:
            table.add_column(todo, justify="right")
        for learner, row in rows.items():
            total = f"{sum(m.points for m in row.values()):g}/{sum(m.max_points for m in row.values()):g}"
            table.add_row(Text(_clean(learner)), *(f"{row[todo].points:g}" for todo in todos), total)
        console.print(table)
    for learner, chapter, reason in refused:
        where = " ".join(filter(None, (learner, chapter)))
        console.print(Text(f"not graded: {_one_line(f'{where}: {reason}')}"), soft_wrap=True)


def print_verdicts(marks):
    """Print each TODO's verdict line and points, and the sum."""
    for mark in marks:
        print(f"{mark.points:g}/{mark.max_points:g} {mark.todo}: {_one_line(mark.reason)}")
    print(f"{sum(mark.points for mark in marks):g}/{sum(mark.max_points for mark in marks):g}")


def _one_line(text):
    return " ".join(_clean(text).split())
