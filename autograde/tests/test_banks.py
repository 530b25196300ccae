"""Both handed banks, broken and hostile submissions, each graded as one class with honest learners around them."""
import hashlib
import re
import site
import socket
import sysconfig
import tempfile
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from grading import grade_quickly, in_gradebook, in_marks_csv, leaked

from autograde import grade
from autograde.course import open_gradebook
from autograde.paths import COURSE, ROOT, SOLUTIONS
from autograde.sandbox import Limits, sandbox_available
from autograde.tests.repairing import CHAPTERS, NO_BANK, mangle, notebooks

BROKEN, HOSTILE = mangle("mangle"), mangle("attack")
WHY_NOT = NO_BANK if BROKEN is None or HOSTILE is None else sandbox_available()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or ""),
    pytest.mark.usefixtures("alembic_asked_once"),
]
HONEST = [f"honest{number:02}" for number in range(7)]  # 01 and 05 are who the hostile ones aim at
# Hostile submissions that say something inside their sandbox although nothing came of it.
TALKERS = {"daemon_outlives", "fork_bomb", "disk_fill", "kill_parent"}
# Cases that need no repair: the file is as good as any other.
AS_GOOD_AS_NEW = {
    "honest_full", "blank_release", "partly_done", "colab_roundtrip", "vscode_roundtrip", "kernelspec_missing",
    "partial_meta", "sources_as_strings", "huge_output", "stored_error_output", "bom_crlf", "crlf_in_sources",
    "name_copy_of", "name_paren_1", "name_chinese_spaces", "name_txt_suffix", "in_subfolder", "in_zip",
    "returns_numpy_scalar", "warns_on_stderr",
}


class Graded:
    """A bank over all chapters, graded, the honest learners with all of them.

    cases: {(learner, chapter): Submission}. of: {(learner, chapter): ClassResult}. folder: has submitted/ and results/.
    before, files_before: what was there before.
    """

    def __init__(self, bank, folder, port=0):
        self.folder, self.cases = folder, {}
        for key, chapter in CHAPTERS.items():
            released, solved = notebooks(key)
            options = BROKEN.Options([todo.grade_id for todo in chapter.todos], filename=f"{chapter.name}.ipynb")
            options.port = port
            made = {f"{name}-{key}": case for name, case in bank.build_all(released, solved, options).items()}
            made |= {name: BROKEN.CASES["honest_full"](released, solved, options) for name in HONEST}
            made["partial"] = BROKEN.CASES["partly_done"](released, solved, options)
            for name, case in made.items():
                self.cases[name, chapter.name] = case
                self._write(case, folder / "submitted" / name / chapter.name)
        self.before = self._state()
        self.files_before = _files(folder / "submitted")
        outcome = grade.grade_class(folder / "submitted", folder / "results")
        self.of = {(one.learner, one.chapter.name): one for one in outcome}

    @staticmethod
    def _write(case, folder):
        for name, data in case.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for name, target in case.links.items():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(target)

    @staticmethod
    def _state():
        """What a submission may not change: sources, Python's own folders, start-up files."""
        packages = Path(sysconfig.get_path("purelib"))
        names = {path for place in (packages, Path(site.getusersitepackages()), Path.home() / ".ipython", ROOT,
                                    Path(tempfile.gettempdir()))
                 if place.is_dir() for path in place.iterdir() if "ATTACK" in path.name or place == packages}
        return names, _files(SOLUTIONS) | _files(COURSE)

    def fraction(self, name, chapter):
        marks = self.of[name, chapter].marks
        return round(sum(mark.points for mark in marks) / sum(mark.max_points for mark in marks), 4)

    def page(self, name):
        return (self.folder / "results" / "feedback" / name / "index.html").read_text(encoding="utf-8")


def _files(folder):
    return {path: hashlib.sha256(path.read_bytes()).digest() for path in folder.rglob("*")
            if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def quick():
    """What hangs is stopped after 2 s instead of 5."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grade, "grade_submission", grade_quickly)
        yield


@pytest.fixture(scope="module")
def broken(tmp_path_factory, quick):
    return Graded(BROKEN, tmp_path_factory.mktemp("broken"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory, quick):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        graded = Graded(HOSTILE, tmp_path_factory.mktemp("hostile"), listener.getsockname()[1])
        listener.setblocking(False)
        try:
            graded.visitor = listener.accept()
        except BlockingIOError:
            graded.visitor = None
        yield graded


@pytest.fixture(params=["broken", "hostile"])
def either(request):
    return request.getfixturevalue(request.param)


def test_every_submission_has_its_result_everywhere(either):
    assert set(either.of) == set(either.cases)
    scores = {key: sum(mark.points for mark in one.marks) for key, one in either.of.items()}
    assert in_gradebook(either.folder / "results") == in_marks_csv(either.folder / "results") == scores


def test_the_honest_ones_keep_their_marks(either):
    for chapter in CHAPTERS.values():
        assert {name: either.fraction(name, chapter.name) for name in HONEST} == dict.fromkeys(HONEST, 1)
        assert either.fraction("partial", chapter.name) == either.cases["partial", chapter.name].fair


@pytest.mark.parametrize("name", BROKEN.CASES if BROKEN else [])
def test_broken_submissions_get_their_fair_marks_and_a_reason(broken, name):
    for key, chapter in CHAPTERS.items():
        learner = f"{name}-{key}"
        case, one = broken.cases[learner, chapter.name], broken.of[learner, chapter.name]
        assert broken.fraction(learner, chapter.name) in case.accept, [mark.reason for mark in one.marks]
        lost = [mark.reason for mark in one.marks if mark.points < mark.max_points]
        assert all(re.match(r"(\[T\d\] )?\S", reason) and not reason.endswith("] ok") for reason in lost)
        assert lost or one.graded.notes or name in AS_GOOD_AS_NEW
        page = re.sub(r"&#?\w+;", "", broken.page(learner))
        assert all(re.sub(r"[<>&\"']", "", text)[:60] in page for text in (*lost, *one.graded.notes))


@pytest.mark.parametrize("name", HOSTILE.CASES if HOSTILE else [])
def test_hostile_submissions_earn_and_learn_nothing(hostile, name):
    for key, chapter in CHAPTERS.items():
        learner = f"{name}-{key}"
        case, one = hostile.cases[learner, chapter.name], hostile.of[learner, chapter.name]
        assert hostile.fraction(learner, chapter.name) <= case.fair, [mark.reason for mark in one.marks]
        printed = "\n".join(cell.printed for cell in one.graded.cells)
        evidence = [line for line in printed.split("\n") if line.startswith("ATTACK-EVIDENCE")]
        assert not evidence or name in TALKERS
        if name == "fork_bomb":
            assert int(evidence[0].split()[-1]) <= Limits().processes
        if name == "disk_fill":
            assert int(evidence[0].split()[-1]) <= Limits().tmp_mb


def test_nothing_is_left_behind_or_changed(hostile):
    assert hostile._state() == hostile.before
    assert _files(hostile.folder / "submitted") == hostile.files_before
    for path in hostile.folder.rglob("*"):
        assert "ATTACK" not in path.name, path
    assert hostile.visitor is None
    deadline = time.monotonic() + 5
    while left := daemons():
        assert time.monotonic() < deadline, left


def live_markup(text):
    """Tags and attributes of a page that could run something."""
    found = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            found.extend([tag] if tag in ("script", "iframe", "object", "embed") else [])
            found.extend(name for name, value in attributes if name.startswith("on") or "javascript:" in (value or "")
                         and name in ("href", "src"))

    Reader().feed(text)
    return found


def daemons():
    """Command lines of the processes that a hostile submission has left."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(process.read_bytes())
        except OSError:  # it has just ended
            continue
    return [line for line in found if b"ATTACK_DAEMON" in line]


def test_nobody_changed_the_gradebook_by_hand(hostile):
    with open_gradebook(hostile.folder / "results") as gradebook:
        grades = [grade for assignment in gradebook.assignments for submission in assignment.submissions
                  for grade in submission.notebooks[0].grades]
        assert len(grades) > 1000
        assert not [grade for grade in grades if grade.manual_score is not None or grade.needs_manual_grade]


def test_pages_and_files_give_nothing_away_and_run_nothing(hostile):
    secret = Path("/etc/passwd").read_text(encoding="utf-8").split("\n")[0]
    for path in (hostile.folder / "results").rglob("*"):
        if path.is_file() and path.suffix in (".html", ".csv", ".json"):
            text = path.read_text(encoding="utf-8")
            assert secret not in text, path
            if path.suffix == ".html":
                assert live_markup(text) == [], path
    names = {name for name, _ in hostile.cases}
    for name in names:
        page = hostile.folder / "results" / "feedback" / name / "index.html"
        assert not [line for chapter in CHAPTERS.values() for line in leaked(page, chapter.name)], name
