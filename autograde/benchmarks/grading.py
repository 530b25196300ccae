"""This grader against stock nbgrader: the same class, CPU seconds and wall time a submission.

`python -m autograde.benchmarks.grading [--learners N]` makes a class whose learners hand in both chapters as whole
notebooks, in turn: all answered right, some TODOs answered, one TODO answered wrong (the chapters' own variants).
This grader marks all of it, stock nbgrader the first `--stock-learners` (it takes seconds a submission); both are
counted a submission. Then the same again with a cell that imports torch and is used by the first answer, so that
neither grader can skip it.

- Ours: `python -m autograde grade`, from its start to its end: sandbox, gradebook, executed notebooks and pages.
- Stock: `nbgrader autograde CHAPTER` with nbgrader's default configuration, none of ours: ClearOutput,
  DeduplicateIds, OverwriteKernelspec, OverwriteCells, CheckCellMetadata; Execute, LimitOutput, SaveAutoGrades,
  AssignLatePenalties, CheckCellMetadata. It makes no pages.
- Both start from a course folder whose assignments are generated; this is not counted.
- Ours has some ten CPU seconds to spend before the first verdict (imports, chapters prepared once, torch loaded
  once a worker), so a class of ten learners shows smaller ratios than one of a hundred and fifty.

CPU seconds are those of all processes of a grader. Bubblewrap and multiprocessing leave processes behind that their
parents never wait for, and whose time RUSAGE_CHILDREN therefore lacks. So each grader runs below a process that is a
"child subreaper" (Linux): whoever loses its parent becomes its child, and it waits for every one of them; what the
kernel reports for each holds all that it has waited for itself. A known load of two CPU seconds, half of it in a
bubblewrap whose parent is gone, is measured in every run, and must come out right within a tenth.

The last line is JSON. The ratios are stock's figure divided by ours. `same_scores`: the two gradebooks agree on all
learners that both graded. `load`: the machine's load average when the run began; on a busy machine wall times say
little. Exit status 1 where a score differs or the known load is measured wrong.

`--scale`: this grader alone, on 100 and on 1,000 submissions. `growth` is how much longer ten times as many take
(10 is linear), `parent_mb` the peak of the grading process itself, without its workers.
"""
import argparse
import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import nbformat

from autograde import build
from autograde.chapter import load_chapters, nbgrader
from autograde.course import open_gradebook, prepare_course
from autograde.errors import InputError

SCALE = (100, 1000)  # submissions
TORCH = "import torch"
# The peak of this very process; ru_maxrss would begin with that of the process which started it.
_OURS = """
import sys
from autograde.__main__ import main
status = main(["grade", *sys.argv[1:]])
print("PEAK", *[line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")])
sys.exit(status)
"""
_BURN = "import time\nwhile time.process_time() < 1: pass\n"
_KNOWN = """
import os, subprocess, sys
walls = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--unshare-pid", "--proc", "/proc"]
if os.fork() == 0:
    subprocess.Popen([*walls, sys.executable, "-S", "-c", sys.argv[1]], start_new_session=True)
    os._exit(0)
subprocess.run([sys.executable, "-S", "-c", sys.argv[1]])
"""


class Spent(NamedTuple):
    """What a command took, all its processes together, and what it printed."""

    cpu_s: float
    wall_s: float
    output: str


def main(arguments=None):
    """Run the benchmark; returns the exit status: 1 where the figures cannot be trusted, 2 where there are none."""
    parser = argparse.ArgumentParser(prog="python -m autograde.benchmarks.grading", description=__doc__.split("\n")[0])
    parser.add_argument("--learners", type=int, default=150, metavar="N", help="learners of the class")
    parser.add_argument("--stock-learners", type=int, default=6, metavar="N", help="how many of them stock grades too")
    parser.add_argument("--scale", action="store_true", help="this grader alone, 100 and 1,000 submissions")
    options = parser.parse_args(arguments)
    try:
        known = spent([sys.executable, "-c", _KNOWN, _BURN], Path.cwd()).cpu_s / 2
        result = scale() if options.scale else compare(options.learners, min(options.stock_learners, options.learners))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result | {"known_load": round(known, 3), "cores": os.cpu_count()}))
    return 0 if result.get("same_scores", True) and 0.9 < known < 1.1 else 1


def compare(learners, stock_learners):
    """The figures of the module's docstring, as a dict. Raises InputError where a grader fails."""
    result = {"load": round(os.getloadavg()[0], 1), "learners": learners, "stock_learners": stock_learners}
    same = True
    for ending, torch in (("", False), ("_torch", True)):
        with tempfile.TemporaryDirectory() as folder:
            ours, stock = Path(folder, "ours"), Path(folder, "stock")
            count = write_class(ours / "submitted", learners, torch)
            stock_count = write_class(stock / "submitted", stock_learners, torch)
            for course in (ours, stock):
                prepare_course(course)
            mine, _ = _run_ours(ours / "submitted", ours)
            theirs = _run_stock(stock)
            same = same and scores(stock).items() <= scores(ours).items()
        for name, one, other in (("cpu", mine.cpu_s, theirs.cpu_s), ("wall", mine.wall_s, theirs.wall_s)):
            one, other = one / count, other / stock_count
            result |= {
                f"our_{name}_s{ending}": round(one, 4), f"stock_{name}_s{ending}": round(other, 3),
                f"{name}_ratio{ending}": round(other / one, 1),
            }
    return result | {"same_scores": same}


def scale():
    """Seconds and peak memory of two classes, one ten times the other. Raises InputError where grading fails."""
    result, walls = {"load": round(os.getloadavg()[0], 1)}, []
    for wanted in SCALE:
        with tempfile.TemporaryDirectory() as folder:
            count = write_class(Path(folder, "submitted"), -(-wanted // len(load_chapters())))
            prepare_course(folder)
            run, parent_mb = _run_ours(Path(folder, "submitted"), Path(folder))
        walls.append(run.wall_s)
        result |= {
            f"wall_s_{count}": round(run.wall_s, 1), f"cpu_s_{count}": round(run.cpu_s, 1),
            f"parent_mb_{count}": round(parent_mb),
        }
    return result | {"growth": round(walls[1] / walls[0], 1)}


def spent(command, folder):
    """The Spent of a command, run in a folder. Raises InputError where it fails."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    environment = dict(os.environ, JUPYTER_CONFIG_DIR=str(folder), IPYTHONDIR=f"{folder}/.ipython")
    start, cpu_s, status = time.monotonic(), 0.0, 0
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        with contextlib.suppress(ChildProcessError):  # when none is left
            while True:
                pid, ended, used = os.wait4(-1, 0)
                cpu_s += used.ru_utime + used.ru_stime
                if pid == process.pid:
                    status = process.returncode = os.waitstatus_to_exitcode(ended)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if status:
        raise InputError(f"{' '.join(command[:4])} … failed: {text[-2000:]}")
    return Spent(cpu_s, time.monotonic() - start, text)


def write_class(folder, learners, torch=False):
    """Write `folder/<learner>/<chapter>/<chapter>.ipynb` for so many learners; returns the number of files."""
    count = 0
    for chapter in load_chapters():
        release = nbformat.reads(build.text(build.release_notebook(chapter, "en")), as_version=4)
        solved = {
            nbgrader(cell)["grade_id"]: cell.source
            for cell in build.solved_notebook(chapter, "en").cells if nbgrader(cell).get("solution")
        }
        for number in range(learners):
            answers = _answers(chapter, solved, number)
            if torch:
                first = chapter.todos[0]
                answers[first.grade_id] = _with_torch(answers[first.grade_id], first.functions[0])
            path = folder / f"learner{number:04}" / chapter.name / f"{chapter.name}.ipynb"
            path.parent.mkdir(parents=True)
            path.write_text(_filled(release, answers, torch), encoding="utf-8")
            count += 1
    return count


def scores(course):
    """{(learner, chapter, test id): points} in a course folder's gradebook."""
    found = {}
    with open_gradebook(course) as gradebook:
        for assignment in gradebook.assignments:
            for submission in gradebook.assignment_submissions(assignment.name):
                for grade in submission.notebooks[0].grades:
                    found[submission.student.id, assignment.name, grade.name] = grade.score
    return found


def _answers(chapter, solved, number):
    """{grade id: source} of one learner; numbers go round full, partial and wrong ones."""
    kind, turn = number % 3, number // 3
    if kind == 0:
        return dict(solved)
    if kind == 1:  # the first TODOs, at least one and not all
        return dict(list(solved.items())[: 1 + turn % (len(solved) - 1)])
    wrong = [variant for variant in chapter.variants if variant.kind == "wrong"]
    variant = wrong[turn * 7 % len(wrong)]
    # It may build on the right one, which stands above it.
    return solved | {variant.todo: f"{solved[variant.todo]}\n\n\n{variant.source}"}


def _with_torch(answer, function):
    return (
        f"{answer}\n\n\n_plain = {function}\n\n\ndef {function}(*args):\n    torch.zeros(1)\n    return _plain(*args)\n"
    )


def _filled(release, answers, torch):
    """Text of the release with these answers, and the torch cell before the first of them."""
    cells = []
    for cell in release.cells:
        if nbgrader(cell).get("solution"):
            if torch:
                cells.append(nbformat.v4.new_code_cell(TORCH, id="torch"))
                torch = False
            cell = nbformat.NotebookNode(cell, source=answers.get(nbgrader(cell)["grade_id"], cell.source))
        cells.append(cell)
    return build.text(nbformat.NotebookNode(release, cells=cells))


def _run_ours(submissions, course):
    """(Spent, peak of the grading process in MB)."""
    run = spent([sys.executable, "-c", _OURS, str(submissions), "--results", str(course)], course)
    return run, int(run.output.rsplit("PEAK", 1)[1]) / 1024


def _run_stock(course):
    """The Spent of all chapters together."""
    (course / "nbgrader_config.py").unlink()  # nbgrader's defaults, in the folder where it is called
    runs = [
        spent([sys.executable, "-m", "nbgrader", "autograde", chapter.name], course) for chapter in load_chapters()
    ]
    return Spent(sum(run.cpu_s for run in runs), sum(run.wall_s for run in runs), "")


if __name__ == "__main__":
    sys.exit(main())
