"""Command line of the course: build notebooks, check one, grade a class, look at a trace."""
import argparse
import sys
from pathlib import Path

from autograde.errors import InputError
from autograde.paths import RESULTS

UNSAFE = "run learners' code without the sandbox, with resource limits only"


def main(arguments=None):
    """Run one command. Returns the exit status: 0, 1 when a check fails, 2 on bad input."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except InputError as error:
        print(f"autograde: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("autograde: stopped; nothing is lost, run again to go on", file=sys.stderr)
        return 130


def _parser():
    parser = argparse.ArgumentParser(prog="python -m autograde", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = commands.add_parser("build", help="write course/ from solutions/")
    build.add_argument("--check", action="store_true", help="write nothing; fail where course/ is out of step")
    build.add_argument("--solved", type=Path, metavar="DIR", help="write the solved notebooks, run, into DIR")
    build.set_defaults(run=_build)

    branch = commands.add_parser("solutions-branch", help="commit the solved notebooks, run, to the branch `solutions`")
    branch.set_defaults(run=_solutions_branch)

    bundle = commands.add_parser("bundle", help="write one zip for a classroom without a network into build/")
    bundle.set_defaults(run=_bundle)

    check = commands.add_parser("check", help="print the verdict lines of one notebook")
    check.add_argument("notebook", type=Path)
    check.add_argument("--unsafe", action="store_true", help=UNSAFE)
    check.set_defaults(run=_check)

    grade = commands.add_parser("grade", help="grade a class")
    grade.add_argument("submissions", type=Path, help="folder, zip or export of Canvas, Moodle or Gradescope")
    grade.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    grade.add_argument("--db", metavar="URL", help="SQLAlchemy address of the gradebook (default: SQLite in DIR)")
    grade.add_argument("--scheduler", metavar="tcp://HOST:PORT", help="grade on this Dask cluster")
    grade.add_argument("--unsafe", action="store_true", help=UNSAFE)
    grade.set_defaults(run=_grade)

    trace = commands.add_parser("trace", help="print the figures of a request trace in Azure's format")
    trace.add_argument("file", type=Path)
    trace.set_defaults(run=_trace)

    mutate = commands.add_parser("mutate", help="mutation run: do the test cells kill every mutant?")
    mutate.add_argument("chapter", nargs="?", help="name of one chapter (default: all)")
    mutate.set_defaults(run=_mutate)
    return parser


# The imports stand in the commands: nbgrader takes a second to import, and --help should not wait for it.

def _build(options):
    from autograde import generated

    if options.solved:
        from autograde.build import write_solved

        write_solved(options.solved)
        return 0
    problems = generated.problems() if options.check else generated.write()
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _solutions_branch(options):
    from autograde.solutions_branch import build_solutions_branch

    print(build_solutions_branch())
    return 0


def _bundle(options):
    from autograde.bundle import write_bundle

    print(write_bundle())
    return 0


def _check(options):
    from autograde.grade import check_notebook
    from autograde.report import print_verdicts

    marks, notes = check_notebook(options.notebook, unsafe=options.unsafe)
    print_verdicts(marks)
    for note in notes:
        print(f"- {note}")
    return 0


def _grade(options):
    from autograde.grade import grade_class
    from autograde.report import not_graded, print_table

    outcome = grade_class(
        options.submissions, options.results, options.db, scheduler=options.scheduler, unsafe=options.unsafe
    )
    print_table([mark for one in outcome for mark in one.marks], not_graded(outcome))
    print(f"{options.results / 'class.html'}: the class; beside it marks.csv, gradebook.db and feedback/<learner>/")
    return 0


def _trace(options):
    from toolkit.traces import describe, read_azure_csv

    try:
        print(describe(read_azure_csv(options.file)))
    except FileNotFoundError:
        raise InputError(f"{options.file}: no such file; expected a trace in Azure's CSV format") from None
    except ValueError as error:
        raise InputError(error) from None
    return 0


def _mutate(options):
    from autograde.mutation import run

    return run(options.chapter)


if __name__ == "__main__":
    sys.exit(main())
