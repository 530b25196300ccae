"""Helpers of test_intake.py and test_repair.py: notebooks as dicts, and a run of what was repaired, in a subprocess."""
import importlib.util
import json
import subprocess
import sys

from autograde import build
from autograde.chapter import load_chapters
from autograde.paths import ROOT
from autograde.rehearsal import cells_to_run

CHAPTERS = {chapter.name[:3]: chapter for chapter in load_chapters()}
SHARED = ROOT.parent / "shared" / "submissions"
RUNNER = """
import io, json, sys, contextlib
checks, jobs = json.load(sys.stdin)
results = []
for job in jobs:
    learner, passed = {"__name__": "__main__"}, []
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for grade_id, source in job:
            try:
                if source:
                    exec(source, learner)
                else:
                    judge = {"__name__": "__main__"}
                    exec(checks["toolkit"], judge)
                    judge.update({n: learner[n] for n in checks["functions"] if n in learner})
                    exec(checks["tests"][grade_id], judge)
                    passed.append(grade_id)
            except BaseException:
                pass
    results.append(passed)
print(json.dumps(results), file=sys.__stdout__)
"""
NO_BANK = "the bank of broken submissions is not beside this repository"
_CHECKS, _NOTEBOOKS = {}, {}


def notebooks(key):
    """(release, solved) of a chapter as dicts, fresh at every call."""
    if key not in _NOTEBOOKS:
        made = build.release_notebook(CHAPTERS[key], "zh"), build.solved_notebook(CHAPTERS[key], "zh")
        _NOTEBOOKS[key] = [build.text(one) for one in made]
    return [json.loads(text) for text in _NOTEBOOKS[key]]


def mangle(name="mangle"):
    """The bank of broken submissions as a module, or None where ../shared is absent."""
    path = SHARED / f"{name}.py"
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def checks_of(key):
    """{"toolkit": source of the checks, "tests": {test_id: source}, "functions": names} of a chapter."""
    if key not in _CHECKS:
        cells = cells_to_run(CHAPTERS[key], solved=())
        _CHECKS[key] = {
            "toolkit": cells[0][2],
            "tests": {grade_id: source for grade_id, is_test, source in cells if is_test},
            "functions": [name for todo in CHAPTERS[key].todos for name in todo.functions],
        }
    return _CHECKS[key]


def fractions(key, jobs):
    """Share of the points that each job, a tuple of repaired cells, earns; all run in one subprocess."""
    chapter = CHAPTERS[key]
    done = subprocess.run([sys.executable, "-c", RUNNER], input=json.dumps([checks_of(key), jobs]), text=True,
                          capture_output=True, timeout=120, check=True)
    points = {test: value for todo in chapter.todos for test, value in todo.tests.items()}
    return [sum(points[test] for test in passed) / sum(points.values()) for passed in json.loads(done.stdout)]
