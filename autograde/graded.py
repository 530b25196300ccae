"""What grading produces, as plain data: it travels between processes and machines and is kept as JSON."""
import json
from dataclasses import asdict, dataclass
from typing import NamedTuple

from toolkit.checks import STAND_IN_REMARK

STAND_IN = STAND_IN_REMARK.split("{names}")[0]


class Mark(NamedTuple):
    """What one learner got for one TODO. `todo` is "" and `max_points` 0 where no chapter was recognised."""

    learner: str
    chapter: str
    todo: str
    points: float
    max_points: float
    reason: str


@dataclass(frozen=True)
class Verdict:
    """Of one test cell: passed or not, and its line for the learner."""

    passed: bool
    line: str


@dataclass(frozen=True)
class RanCell:
    """A learner's code cell: the TODO it answers ("" for a helper), its code, what went wrong, what it printed."""

    todo: str
    source: str
    error: str
    printed: str


@dataclass(frozen=True)
class Graded:
    """One submission, graded.

    verdicts: test id -> Verdict. cells: what ran, in order. notes: repairs and remarks, for the learner to read.
    problem: why nothing could be graded, else "". notebook: the file that counts. unsafe: ran without a sandbox.
    """

    verdicts: dict
    cells: tuple
    notes: tuple
    problem: str
    notebook: str
    unsafe: bool
    wall_s: float


def to_json(graded):
    """A Graded as text; `from_json` gives it back."""
    return json.dumps(asdict(graded), ensure_ascii=False)


def from_json(text):
    """The Graded in a text. Raises ValueError, KeyError, TypeError or AttributeError where there is none."""
    data = json.loads(text)
    data["verdicts"] = {test_id: Verdict(**verdict) for test_id, verdict in data["verdicts"].items()}
    data["cells"] = tuple(RanCell(**cell) for cell in data["cells"])
    data["notes"] = tuple(data["notes"])
    return Graded(**data)


def marks_of(chapter, learner, graded, by_hand=None):
    """A Mark for each TODO of the chapter. `by_hand`: {test id: score} that somebody gave in the gradebook."""
    by_hand = by_hand or {}
    marks = []
    for todo in chapter.todos:
        verdicts = {test_id: graded.verdicts.get(test_id, Verdict(False, graded.problem)) for test_id in todo.tests}
        points = {test_id: most * verdicts[test_id].passed for test_id, most in todo.tests.items()} | {
            test_id: score for test_id, score in by_hand.items() if test_id in todo.tests
        }
        problem = [graded.problem] if graded.problem else []
        failing = [
            verdict.line for test_id, verdict in verdicts.items() if not verdict.passed and test_id not in by_hand
        ]
        adjusted = [f"[{todo.label}] 人工评分 · graded by hand" for test_id in points if test_id in by_hand]
        remarks = [verdict.line for verdict in verdicts.values() if STAND_IN in verdict.line]
        reason = next(iter([*problem, *failing, *adjusted, *remarks]), f"[{todo.label}] ok")
        marks.append(Mark(learner, chapter.name, todo.grade_id, sum(points.values()), todo.points, reason))
    return marks
