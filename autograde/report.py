"""Marks as a CSV file, as HTML pages for the learners, as a table and as verdict lines in the terminal."""
import csv
import io
from itertools import groupby
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autograde.course import write_atomically
from autograde.paths import AUTOGRADE

COLUMNS = ("learner", "chapter", "todo", "points", "max_points", "reason")
_templates = Environment(
    loader=FileSystemLoader(AUTOGRADE / "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True
)


def write_marks_csv(marks, path):
    """Write one row for each learner, chapter and TODO; a chapter that is not known has one row with no TODO."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for mark in marks:
        rows.writerow([
            _plain(mark.learner), _plain(mark.chapter), mark.todo, f"{mark.points:g}", f"{mark.max_points:g}",
            _plain(mark.reason),
        ])
    write_atomically(path, text.getvalue())


def write_feedback_pages(marks, folder):
    """Write folder/<learner>/index.html, which links nbgrader's own page of each chapter."""
    template = _templates.get_template("feedback.html.j2")
    for learner, theirs in groupby(marks, key=lambda mark: mark.learner):
        chapters = []
        for name, group in groupby(theirs, key=lambda mark: mark.chapter):
            group = list(group)
            page = folder / learner / name / f"{name}.html"
            chapters.append({
                "name": name,
                "marks": [mark for mark in group if mark.todo],
                "points": sum(mark.points for mark in group),
                "max_points": sum(mark.max_points for mark in group),
                "page": quote(f"{name}/{name}.html") if page.is_file() else None,
                "problem": group[0].reason if is_refused(group[0]) else None,
            })
        write_atomically(folder / learner / "index.html", template.render(learner=learner, chapters=chapters))


def print_table(marks):
    """Print one table a chapter: learners down, TODOs across; then why some submissions were not graded."""
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
            table.add_row(Text(learner), *(f"{row[todo].points:g}" for todo in todos), total)
        console.print(table)
    for reason in {mark.reason: None for mark in marks if is_refused(mark)}:
        console.print(Text(f"not graded: {reason}"), soft_wrap=True)


def print_verdicts(marks):
    """Print each TODO's verdict line and points, and the sum."""
    for mark in marks:
        print(f"{mark.points:g}/{mark.max_points:g} {mark.todo}: {mark.reason}")
    print(f"{sum(mark.points for mark in marks):g}/{sum(mark.max_points for mark in marks):g}")


def is_refused(mark):
    """Does the mark stand for a submission that could not be graded? Verdict lines start with the TODO."""
    return not mark.reason.startswith("[T")


def _plain(text):
    """Text that a spreadsheet takes for text and not for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
