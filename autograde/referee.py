"""Decide: run a chapter's test cells here, with the learner's functions running in the sandbox.

The test cells are trusted code of the chapter's script, hidden tests among them. In place of the learner's functions
they find proxies, which send plain arguments in and get plain data out. `check` and its lines are those of the
learner's notebook (toolkit/checks.py), so verdicts are the same as nbgrader's on the same answers.
"""
import ast
import builtins
import contextlib
import functools
import itertools
import json
import re
import time
import types
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from autograde import build, inline, wire
from autograde.chapter import nbgrader
from autograde.graded import Verdict
from autograde.sandbox import OutOfStep, Stopped

CHECKS = {"checks": ["case", "check", "declare_todos", "demo", "hidden_rng", "scorecard", "why"]}
MOST_STOPS = 2  # a function that hung or died so often is not asked again
BATCH_S = 2.0  # more than the sandbox takes for many calls before it gives the rest back
MOST_STARTS = 25  # of a process for one submission
MOST_NOTES = 8
TRANSFORM_WORK = 100_000  # characters times magics of a cell: IPython's transformer reads all for each of them


@dataclass(frozen=True)
class CellRun:
    """Of one learner's cell: "" or what went wrong (in one line), and what it printed (shortened)."""

    error: str
    printed: str


@dataclass(frozen=True)
class Outcome:
    """Of one submission: verdicts by test id, its cells in order, remarks for the report, CPU seconds inside."""

    verdicts: dict
    cells: tuple
    notes: tuple
    cpu_s: float


@dataclass(frozen=True)
class Exam:
    """What a chapter asks, prepared once for all submissions. Made by `prepare`."""

    chapter: object
    functions: tuple  # names that test cells may call
    tests: tuple  # of _Test, in order
    toolkit: types.CodeType
    imports: dict  # name that the released toolkit cell imports -> the import statement
    helpers: tuple  # names that this cell defines
    arrays: bool  # do test cells use numpy or torch themselves


@dataclass(frozen=True)
class _Test:
    test_id: str
    todo: object
    code: types.CodeType
    checks: tuple  # of _Check; None where the cell does more than to call `check`


class _Check(NamedTuple):
    """A call of `check`, recorded; what the sandbox is asked for it and what a right function answers."""

    args: tuple
    kwargs: dict
    function: str
    calls: tuple  # encoded arguments
    answers: tuple  # the encoded reply that is surely right, call by call; b"" where an error is
    cases: tuple  # of checks.py, call by call
    line: str  # printed when it passes


def prepare(chapter):
    """The Exam of a chapter; COURSE_SEED in the environment decides on its hidden cases, now."""
    toolkit = compile(f"{inline.inlined(CHECKS)}\n{build.declaration(chapter)}", "<toolkit>", "exec")
    given = [cell for cell in chapter.cells if nbgrader(cell) and not nbgrader(cell)["grade"]]
    functions = [name for todo in chapter.todos for name in todo.functions]
    functions += [name for cell in given for name in re.findall(r"^def\s+(\w+)", cell.source, re.M)]
    functions = tuple(dict.fromkeys(functions))
    sources = {nbgrader(cell)["grade_id"]: cell.source for cell in chapter.cells if nbgrader(cell).get("grade")}
    tests = []
    for todo in chapter.todos:
        for test_id in todo.tests:
            code = compile(sources[test_id], f"<{test_id}>", "exec")
            tests.append(_Test(test_id, todo, code, _recorded(toolkit, code, functions)))
    imports, helpers = _released_helpers(chapter)
    arrays = bool(re.search(r"\b(numpy|torch)\b", "".join(sources.values())))
    return Exam(chapter, functions, tuple(tests), toolkit, imports, helpers, arrays)


def judge(exam, cells, sandbox):
    """The Outcome of one submission.

    `cells`: (TODO's grade id or "", source) of the learner's code cells in order. Test cells of a TODO run when the
    cells before the next TODO have run, as in the notebook. Raises InputError where the sandbox cannot start; nothing
    that is in `cells` raises.
    """
    marking = _Marking(exam, list(cells), sandbox)
    try:
        for end, test in sorted(marking.places(), key=lambda place: place[0]):
            marking.run(end, test)
        marking.run_cells(len(cells))
    finally:
        marking.end_session()
    return marking.outcome()


# ---- preparing ----

class _NotRecordable(Exception):
    """The test cell calls a learner's function itself."""


def _recorded(toolkit, code, functions):
    """The calls of `check` that a test cell makes, each tried on a right function; None where there is more to it."""
    def refuse(*args, **kwargs):
        raise _NotRecordable

    calls, namespace = [], {"__name__": "__main__", **dict.fromkeys(functions, refuse)}
    exec(toolkit, namespace)
    check, namespace["check"] = namespace["check"], lambda *args, **kwargs: calls.append((args, kwargs))
    try:
        exec(code, namespace)
    except Exception:
        return None
    return tuple(_try_out(namespace, check, args, kwargs) for args, kwargs in calls)


def _try_out(namespace, check, args, kwargs):
    function, cases = args[1], list(args[2])
    wanted = iter([*cases, cases[0]])

    def right(*_):
        one = next(wanted)
        if one.raises:
            raise one.raises
        return one.want

    printed = []
    namespace.update({function: right, "print": printed.append, "check": check, "_call": (args, kwargs)})
    eval(_CHECK, namespace)
    cases = [*cases, cases[0]]
    return _Check(
        args, kwargs, function,
        tuple(wire.encode([list(one.args), {}]).encode() for one in cases),
        tuple(b"" if one.raises else b"v" + wire.encode(one.want).encode() for one in cases),
        tuple(cases),
        printed[0],
    )


_CHECK = compile("check(*_call[0], **_call[1])", "<check>", "eval")  # check looks into its caller's globals


def _released_helpers(chapter):
    """({name: import statement}, names defined) of the toolkit cell that learners run first."""
    imports, names = {}, set()
    for cell in chapter.cells:
        wanted = inline.toolkit_imports(cell.source) if cell.cell_type == "code" else {}
        for node in ast.parse(inline.inlined(wanted)).body if wanted else ():
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                imports.update({(a.asname or a.name).split(".")[0]: ast.unparse(node) for a in node.names})
            else:
                targets = getattr(node, "targets", [node])
                names |= {getattr(target, "name", None) or getattr(target, "id", "") for target in targets}
    return imports, tuple(sorted(names - {""}))


_MAGIC = re.compile(r"^[ \t]*(?:%|!|\?|>>>|In \[)|\?[ \t]*$|=[ \t]*[%!]|\A\s*^[ \t]+\S", re.M)
_BODY_RUNS = re.compile(r"\A\s*%%(time|timeit|capture|prun|memit|mprun)\b.*\n")


@functools.lru_cache(maxsize=4096)
def _python(source):
    """A cell as plain Python: magics and shell lines become calls of get_ipython(), by IPython's own transformer."""
    for _ in range(3):
        source = _BODY_RUNS.sub("", source, count=1)
    if not 0 < len(source) * len(_MAGIC.findall(source)) <= TRANSFORM_WORK:
        return source
    from IPython.core.inputtransformer2 import TransformerManager  # half a second that few need

    try:
        return TransformerManager().transform_cell(source)
    except Exception:  # not even IPython can read it
        return source


# ---- one submission ----

_QUIET = types.SimpleNamespace(redirect_stdout=contextlib.nullcontext, redirect_stderr=contextlib.nullcontext)
_NO_WARNINGS = types.SimpleNamespace(catch_warnings=contextlib.nullcontext, simplefilter=lambda action: None)


@dataclass
class _Marking:
    """The state of judging one submission."""

    exam: Exam
    cells: list
    sandbox: object
    verdicts: dict = field(default_factory=dict)
    runs: dict = field(default_factory=dict)  # index of a cell -> CellRun
    notes: list = field(default_factory=list)
    cpu_s: float = 0.0

    def __post_init__(self):
        text = "\n".join(source for _, source in self.cells)
        words = set(re.findall(r"\w+", text))
        self.imports = "\n".join(dict.fromkeys(line for name, line in self.exam.imports.items() if name in words))
        self.stubs = [name for name in self.exam.helpers if name in words]
        self.arrays = self.exam.arrays or bool({"numpy", "torch"} & {*words, *re.findall(r"\w+", self.imports)})
        self.session, self.starts = None, 0
        self.killers = set()  # cells that ended the process or hung
        self.defined = set()
        self.stateful = False
        self.next_cell = 0
        self.queue = deque()  # replies that have come before they are asked for
        self.ahead = None  # replies to the check that is about to run
        self.tables = {}  # name -> (parameters, recorded answers), standing in for other TODOs
        self.told = set()  # functions whose recorded answers this process has seen
        self.slow = set()  # functions that are asked one call at a time
        self.stops = Counter()
        self.last_stop = {}
        self.stop = None  # what stopped a function in this test cell
        self.deadline = time.monotonic() + self.sandbox.limits.submission_s
        self.namespace = {"__name__": "__main__"}
        exec(self.exam.toolkit, self.namespace)
        self.first_failure, self.describe = (self.namespace[name] for name in ("_first_failure", "_describe"))
        self.namespace.update(
            contextlib=_QUIET, warnings=_NO_WARNINGS, _first_failure=self.first_failure_ahead, _describe=self.words,
        )

    def places(self):
        """(number of cells that run before it, test) for every test cell."""
        for test in self.exam.tests:
            own = [index for index, (todo, _) in enumerate(self.cells) if todo == test.todo.grade_id]
            end = own[-1] + 1 if own else len(self.cells)
            while end < len(self.cells) and self.cells[end][0] in ("", test.todo.grade_id):
                end += 1
            yield end, test

    def outcome(self):
        runs = tuple(self.runs[index] for index in range(len(self.cells)))
        return Outcome(self.verdicts, runs, tuple(self.notes), self.cpu_s)

    # -- cells --

    def run_cells(self, end):
        """Execute the learner's cells before `end` that have not run yet."""
        self.next_cell = max(self.next_cell, end)
        for index in range(self.next_cell):
            if index not in self.runs:
                self.run_cell(index)

    def run_cell(self, index):
        try:
            self.runs[index] = self.in_step(lambda: self.execute(index), before=index)
        except Stopped as stopped:
            self.drop(index, stopped)

    def in_step(self, ask, before=None):
        """What `ask` returns; once more in a new process where something from before has come in its place."""
        self.need_session(before)
        try:
            return ask()
        except OutOfStep:
            self.need_session(before)
            return ask()

    def drop(self, index, stopped):
        """A cell has hung or ended the process: go on without it."""
        self.killers.add(index)
        self.runs[index] = CellRun(str(stopped), "")
        todo = self.cells[index][0]
        note = (f"{f'单元格 cell {todo}' if todo else f'第 {index + 1} 个代码单元格 code cell {index + 1}'}: "
                f"{stopped}; 其余单元格照常批改 · the other cells count as usual")
        if len(self.notes) < MOST_NOTES:
            self.notes.append(note)
        self.end_session()

    def execute(self, index):
        """The CellRun of one cell. Raises Stopped."""
        todo, source = self.cells[index]
        label = f"<{todo or f'cell {index + 1}'}>"
        return self.send_cell(_python(source), label, self.sandbox.limits.cell_s)

    def send_cell(self, source, label, seconds):
        request = {"cell": source, "label": label, "functions": self.exam.functions, "stubs": self.stubs}
        (line,) = self.ask([json.dumps(request).encode()], 1, seconds)
        try:
            error, printed, names, state = wire.decode(line)
            run = CellRun(" ".join(str(error).split())[:500], str(printed)[:1 << 16])
            self.defined = set(self.exam.functions) & set(names)
            self.stateful = self.stateful or bool(state)
        except (wire.WireError, TypeError, ValueError):
            raise self.broken() from None
        for name in self.exam.functions:
            if name in self.defined:
                self.namespace[name] = functools.partial(self.call, name)
            else:
                self.namespace.pop(name, None)
        return run

    # -- the process --

    def need_session(self, before=None):
        """Start a process where there is none, with the cells that ran so far. Raises Stopped."""
        while self.session is None:
            self.refuse_when_late()
            if self.starts >= MOST_STARTS:
                raise Stopped(f"进程已经重启 {MOST_STARTS} 次 · its process had to be started {MOST_STARTS} times")
            self.starts += 1
            self.session = self.sandbox.open(arrays=self.arrays)
            self.told = set()
            if self.imports:
                self.send_cell(self.imports, "<imports>", self.sandbox.limits.cell_s)
            for index in sorted(set(self.runs) - self.killers):
                if index == before:
                    break
                try:
                    self.execute(index)
                except Stopped as stopped:
                    self.drop(index, stopped)
                    break

    def left(self):
        return self.deadline - time.monotonic()

    def refuse_when_late(self):
        if self.left() <= 0:
            self.end_session()
            seconds = f"{self.sandbox.limits.submission_s:g}"
            raise Stopped(f"这份作业用完了 {seconds} 秒 · the {seconds} s of this submission are used up")

    def ask(self, lines, replies, seconds):
        self.refuse_when_late()
        try:
            return self.session.ask(lines, replies=replies, seconds=max(0.1, min(seconds, self.left())))
        except Stopped:
            self.end_session()
            raise

    def broken(self):
        self.end_session()
        return Stopped("进程给出了无法读懂的答复 · its process gave an unreadable reply")

    def end_session(self):
        if self.session:
            self.cpu_s += self.session.close()
            self.session = None

    # -- test cells --

    def run(self, end, test):
        """Run a test cell, once the cells before `end` have run."""
        self.run_cells(end)
        if self.told & set(test.todo.functions):
            self.end_session()  # it has seen recorded answers to what is asked now
        self.stop, printed = None, []
        self.namespace["print"] = lambda *words: printed.append(" ".join(map(str, words)))
        try:
            if test.checks is None:
                exec(test.code, self.namespace)
            else:
                for check in test.checks:
                    self.run_check(check, printed)
            verdict = Verdict(True, printed[0] if printed else f"[{test.todo.label}] ok")
        except KeyboardInterrupt:
            raise
        except (AssertionError, NotImplementedError) as error:
            verdict = Verdict(False, self.stop_line(test) or str(error))
        except BaseException as error:  # of hostile data: a failed cell, nothing more
            words = " ".join(f"{type(error).__name__}: {error}".split())
            verdict = Verdict(False, self.stop_line(test) or f"[{test.todo.label}] {words[:300]}")
        self.verdicts[test.test_id] = verdict

    def stop_line(self, test):
        """The line where a function was stopped, or its own cell before it was ever defined; None elsewhere."""
        if self.stop:
            return f"[{test.todo.label}] {self.stop[0]}: {self.stop[1]}"
        killers = [index for index in sorted(self.killers) if self.cells[index][0] == test.todo.grade_id]
        if killers and not self.defined.issuperset(test.todo.functions):
            return f"[{test.todo.label}] {self.runs[killers[0]].error}"
        return None

    def run_check(self, check, printed):
        """Like the call of `check` in the test cell; the short way where every reply is the right one."""
        if self.asks_ahead(check.function):
            self.ahead = self.fetch(check.function, check.calls)
            if len(self.ahead) == len(check.calls) and all(map(self.is_right, self.ahead, check.answers, check.cases)):
                self.ahead = None
                printed.append(check.line)
                return
        self.namespace["_call"] = check.args, check.kwargs
        try:
            eval(_CHECK, self.namespace)
        finally:
            self.ahead = None

    def is_right(self, line, answer, case):
        """Would `check` let a reply pass? Only where no argument was changed; others `check` itself must judge."""
        if line == answer:
            return True
        try:
            if b"\t" in line or line[:1] != (b"e" if case.raises else b"v"):
                return False
            value = wire.decode(line[1:], arrays=self.exam.arrays)
            if case.raises:
                return isinstance(_error(value), case.raises)
            return self.namespace["difference"](value, case.want) is None
        except wire.WireError:
            return False

    def first_failure_ahead(self, namespace, name, cases):
        """Stands in for the function of this name in checks.py: fetches the replies of all its calls at once."""
        self.tables = {other: namespace[other].recorded for other in self.exam.functions
                       if hasattr(namespace.get(other), "recorded")}
        self.stop = None  # of the learner's own versions of other TODOs, where recorded answers stand in now
        try:
            if self.ahead is None and name not in self.tables and self.asks_ahead(name):
                calls = [wire.encode([list(one.args), {}]).encode() for one in [*cases, cases[0]]]
                self.ahead = self.fetch(name, calls)
            self.queue.extend(self.ahead or ())
            self.ahead = None
            return self.first_failure(namespace, name, cases)
        finally:
            self.queue.clear()
            self.tables = {}

    def asks_ahead(self, name):
        return name in self.defined and not self.stateful and (name, bool(self.tables)) not in self.slow

    def fetch(self, name, calls):
        """Replies to as many of the calls as take little time; the others are asked when it is their turn."""
        try:
            self.need_session()
            replies = self.ask(self.request(name, calls), len(calls), min(BATCH_S, self.sandbox.limits.call_s))
        except Stopped:
            replies = []
        replies = list(itertools.takewhile(lambda reply: reply != b"?", replies))
        if len(replies) < len(calls):
            self.slow.add((name, bool(self.tables)))
        return replies

    def request(self, name, calls):
        self.told |= set(self.tables)
        header = json.dumps({"name": name, "calls": len(calls)}).encode()
        return [header, wire.encode(self.tables).encode(), *calls]

    def call(self, name, *args, **kwargs):
        """What a test cell finds under the name of a learner's function."""
        if self.queue:
            return self.value(self.queue.popleft(), args)
        key = name, bool(self.tables)
        if self.stops[key] >= MOST_STOPS:
            self.stop = name, self.last_stop[key]
            raise self.last_stop[key]
        try:
            call = wire.encode([list(args), kwargs]).encode()
            (line,) = self.in_step(lambda: self.ask(self.request(name, [call]), 1, self.sandbox.limits.call_s))
        except Stopped as stopped:
            self.stops[key] += 1
            self.last_stop[key] = stopped
            self.stop = name, stopped
            raise
        return self.value(line, args)

    def value(self, line, args):
        """What a reply says: a value, an error that is raised, and changes that the call made to its arguments."""
        reply, _, changed = line.partition(b"\t")
        if changed:
            _change(args, wire.decode(changed, arrays=self.exam.arrays))
        if reply[:1] == b"v":
            return wire.decode(reply[1:], arrays=self.exam.arrays)
        if reply[:1] != b"e":
            raise wire.WireError("an unreadable reply")
        raise _error(wire.decode(reply[1:]))

    def words(self, error):
        """Stands in for `_describe` in checks.py: the type and the line of the learner's own code."""
        return getattr(error, "words", None) or self.describe(error)


def _error(parts):
    """The built-in exception nearest to what was raised inside; its `words` are those of the learner's own."""
    if not (type(parts) is list and list(map(type, parts)) == [list, str, str]):
        raise wire.WireError("an unreadable error")
    bases, message, words = parts
    error = RuntimeError(message)
    for name in bases:
        kind = getattr(builtins, name, None) if type(name) is str else None
        if isinstance(kind, type) and issubclass(kind, Exception):
            # Some want other arguments than a message, then the next base is near enough.
            with contextlib.suppress(TypeError):
                error = kind(message)
                break
    error.words = " ".join(words.split())[:500]
    return error


def _change(args, changed):
    """Bring changes that a call made inside to the arguments here."""
    if type(changed) is not list or len(changed) != len(args):
        raise wire.WireError("unreadable arguments")
    for old, new in zip(args, changed):
        if type(old) is list and type(new) is list:
            old[:] = new
        elif type(old) is dict and type(new) is dict:
            old.clear()
            old.update(new)
