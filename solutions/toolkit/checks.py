"""Checks with one-line verdicts, the same in a learner's notebook and under nbgrader.

A test cell calls `check`, which prints `[T2] ok` or raises an error that renders as one line.
Raising is what nbgrader counts; one line is what a learner can read. `why("T2")` shows the rest.
"""
import contextlib
import copy
import html
import io
import math
import os
import random
import re
import reprlib
import sys
import traceback
import warnings
from typing import NamedTuple

TOLERANCE = 1e-9  # relative above 1, absolute below: floats of other algebraic forms stay well inside
LONGEST_SHOWN = 100  # characters of a value or a call in a verdict line; why() shows the call whole
WRONG_DEMO = "还有检查没通过，下面的结果来自有错的函数 · checks fail: what follows comes from a wrong function"
NOT_DONE = "not done yet · 尚未完成"
NUMPY_HINT = (
    "numpy 或 torch 的标量，请用 .item() 换成普通 Python 值"
    " · a numpy or torch scalar: use .item() to return a plain Python value"
)
TYPE_HINT = "类型不对 · wrong type: {got}, expected {want}"
NONE_HINT = (
    "没有返回值：代码缩进在函数里吗？每条路径都要 return"
    " · nothing came back: is the code indented inside the function? every path needs a return"
)
FIELDS_HINT = "字段名不对 · other fields than the table has"
MUTATION_HINT = "函数改动了传入的参数，请先复制 · the function changed its input: copy before you edit"
STATE_HINT = "同样的输入第二次给出不同结果，请不要在调用之间保存状态 · a second call with the same input differs: keep no state"
STAND_IN_REMARK = "用参考实现代替 {names} 后通过 · passes with the reference answers of {names}, yours still fails"

_todos = {}  # label -> {"title": str, "tests": {test_id: points}}; filled by declare_todos
_passed = {}  # test_id -> did the latest run of this test cell pass
_details = {}  # label -> text that why() prints

_shorten = reprlib.Repr()
_shorten.maxstring = _shorten.maxother = 80
_shorten.maxdict = _shorten.maxlist = _shorten.maxtuple = 8
_shorten.maxlevel = 4


class Case(NamedTuple):
    """One call of the learner's function and what must come of it."""

    args: tuple
    want: object
    raises: type
    hint: str
    mistakes: tuple


class _Failure(NamedTuple):
    got: str
    want: str
    hint: str
    call: str
    details: str
    error: BaseException
    unfinished: bool


def case(*args, want=None, raises=None, hint, mistakes=()):
    """A call with positional `args` that must return `want`, or raise `raises` (or a subclass of it).

    `hint` is shown when the result differs. `mistakes` is a list of (value, hint): when the value
    found at the first difference is `value`, its hint is shown instead.
    """
    return Case(args, want, raises, hint, tuple(mistakes))


def declare_todos(todos):
    """Tell the checks which test cells belong to which TODO; the build writes this call.

    `todos`: {"T1": {"title": "classify", "tests": {"test_classify": 2, …}}, …}, points as numbers.
    """
    _todos.clear()
    _todos.update(todos)
    _passed.clear()
    _details.clear()


def check(test_id, function_name, cases, *, stand_ins=None, hidden=False):
    """Run `cases` on the caller's function of that name; print `[Tn] ok` or raise with one line.

    `stand_ins`: {"name(parameters)": [(args, result), …]} are recorded right answers of other TODOs. They
    are tried when the function fails with the learner's own versions, so that one wrong TODO does not
    cost another one its points. `hidden` keeps inputs and expected values out of the line.

    Raises NotImplementedError when the TODO is unfinished, AssertionError when it is wrong.
    """
    namespace = sys._getframe(1).f_globals
    label, aspect = _label(test_id)
    _passed[test_id] = False
    failure = _first_failure(namespace, function_name, cases)
    remarks = [aspect] if aspect else []
    if failure and stand_ins:
        with _replaced(namespace, stand_ins):
            second = _first_failure(namespace, function_name, cases)
        # The second failure is this TODO's own; of state it says less, because the first run left some behind.
        failure = failure if second and failure.hint == STATE_HINT else second
        if failure is None:
            remarks.append(STAND_IN_REMARK.format(names=", ".join(key.partition("(")[0] for key in stand_ins)))
    if hidden:
        remarks.append(f"hidden checks · 隐藏检查, seed {_seed()}")
    if failure is None:
        _passed[test_id] = True
        print(" · ".join([f"[{label}] ok", *remarks]))
        return
    if failure.unfinished:
        _raise_line(NotImplementedError, f"[{label}] {NOT_DONE}", failure.error)
    if hidden:
        _details[label] = f"hidden checks, seed {_seed()}: {failure.hint}"
        line = f"[{label}] got another answer, expected the stated rule : {failure.hint} · {remarks[-1]}"
    else:
        _details[label] = failure.details
        line = f"[{label}] got {failure.got}, expected {failure.want} : {failure.hint} · {failure.call}"
        if failure.error is not None:
            line += f' · 完整报错 the whole error: why("{label}")'
    _raise_line(AssertionError, line, failure.error)


def why(label):
    """Print what the latest failing check of this TODO saw: the call, the printed text, the traceback.

    `why("demo")` prints the traceback of the latest demonstration that failed.
    """
    print(_details.get(label, f"[{label}] no failed check so far · 还没有失败的检查"))


@contextlib.contextmanager
def demo(*labels):
    """Run a demonstration on the learner's functions; while a TODO is unfinished or wrong say so, do not fail."""
    names = "/".join(labels)
    wrong = [label for label in labels if label in _details and not all(map(_passed.get, _todos[label]["tests"]))]
    if wrong:
        print(f"[{'/'.join(wrong)}] {WRONG_DEMO}")
    try:
        yield
    except NotImplementedError:
        print(f"[{names}] {NOT_DONE}")
    except Exception as error:  # a wrong answer must not stop the rest of the notebook
        _details["demo"] = traceback.format_exc()  # what the checks found of these TODOs stays
        print(f'[{names}] {type(error).__name__}: {error} · 完整报错 the whole error: why("demo")')


def hidden_rng(test_id):
    """Random generator of the hidden checks of one test cell; COURSE_SEED in the environment sets the seed."""
    return random.Random(f"{_seed()}-{test_id}")


class Scorecard:
    """Points per TODO from the visible checks, as an HTML table and as plain text."""

    def __init__(self, rows):
        self.rows = rows  # [(label, title, points, max_points), …]

    def _totals(self):
        return sum(row[2] for row in self.rows), sum(row[3] for row in self.rows)

    def __repr__(self):
        lines = [f"{label:<4}{title:<14}{points:>4g} / {most:g}" for label, title, points, most in self.rows]
        points, most = self._totals()
        return "\n".join([*lines, f"{'sum · 合计':<16}{points:>4g} / {most:g}"])

    def _repr_html_(self):
        points, most = self._totals()
        cells = "".join(
            f"<tr><td>{html.escape(label)}</td><td>{html.escape(title)}</td><td>{got:g} / {of:g}</td></tr>"
            for label, title, got, of in self.rows
        )
        return (
            "<table><caption style='white-space:nowrap'>Scorecard of the visible checks · 可见检查的得分</caption>"
            "<thead><tr><th>TODO</th><th>topic · 主题</th><th>points · 得分</th></tr></thead>"
            f"<tbody>{cells}<tr><th colspan='2'>sum · 合计</th><th>{points:g} / {most:g}</th></tr></tbody></table>"
        )


def scorecard():
    """The scorecard of this notebook's visible checks, as they last ran."""
    return Scorecard([
        (
            label,
            todo["title"],
            sum(points for test_id, points in todo["tests"].items() if _passed.get(test_id)),
            sum(todo["tests"].values()),
        )
        for label, todo in _todos.items()
    ])


def difference(got, want):
    """First difference between a learner's value and the expected plain value.

    Returns None when they agree, else (path, got, want, hint): hint is "" where only the value
    differs. Types count (bool, int, str, list, dict); int is accepted for float; subclasses of dict
    and str are accepted; an object's own `__eq__` is never asked.
    """
    kind = type(got)  # an object may lie about its class, its type does not
    if str(kind.__module__).split(".")[0] in ("numpy", "torch"):
        return "", got, want, NUMPY_HINT
    if want is None or isinstance(want, bool):
        return None if got is want else ("", got, want, "" if kind is type(want) else _type_hint(got, want))
    if isinstance(want, (int, float)):
        return _number_difference(got, want)
    for wanted in (str, list, tuple, dict):
        if isinstance(want, wanted) and not issubclass(kind, wanted):
            return "", got, want, _type_hint(got, want)
    if isinstance(want, str):
        return None if str.__eq__(got, want) else ("", str.__str__(got), want, "")
    if isinstance(want, (list, tuple)):
        return _sequence_difference(got, want)
    if isinstance(want, dict):
        return _dict_difference(got, want)
    raise TypeError(f"a check expects a {type(want).__name__}; use None, bool, int, float, str, list, tuple or dict")


def _type_hint(got, want):
    return TYPE_HINT.format(got=type(got).__name__, want=type(want).__name__)


def _number_difference(got, want):
    kind = type(got)
    if kind is bool or not issubclass(kind, (int, float) if isinstance(want, float) else int):
        return "", got, want, _type_hint(got, want)
    # Unbound methods: a subclass cannot answer for itself.
    value = float.__add__(got, 0.0) if issubclass(kind, float) else int.__add__(got, 0)
    try:
        close = math.isclose(value, want, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except OverflowError:  # an int beyond all floats
        close = False
    return None if close else ("", value, want, "")


def _sequence_difference(got, want):
    items = list(type(want).__iter__(got))
    if len(items) != len(want):
        return "", items, want, ""
    for index, (mine, right) in enumerate(zip(items, want)):
        found = difference(mine, right)
        if found:
            # A list of words reads best whole; its order may be what is wrong.
            if isinstance(right, str) and not found[3]:
                return "", items, want, ""
            return f"[{index}]{found[0]}", *found[1:]
    return None


def _dict_difference(got, want):
    # A str enum as key hashes unlike its text, so keys are compared as plain text.
    mine = {str.__str__(k) if issubclass(type(k), str) else k: v for k, v in dict.items(got)}
    if set(mine) != set(want) or dict.__len__(got) != len(want):
        return "", list(mine), list(want), FIELDS_HINT
    for key, right in want.items():
        found = difference(mine[key], right)
        if found:
            return f"{key}{found[0]}" if not found[0] or found[0][0] == "[" else f"{key}.{found[0]}", *found[1:]
    return None


def _first_failure(namespace, function_name, cases):
    function = namespace.get(function_name)
    if not callable(function):
        return _Failure(
            "nothing", f"a function {function_name}",
            "请先运行它上面的单元格（有语法错误吗？）· run the cell above first (a syntax error there?)",
            function_name, f"{function_name} is not defined", None, False,
        )
    # The first case runs twice: state kept between calls shows at the end.
    for index, one in enumerate([*cases, cases[0]]):
        failure = _run(function, function_name, one)
        if failure:
            return failure._replace(hint=STATE_HINT) if index == len(cases) else failure
    return None


def _run(function, name, one):
    args = copy.deepcopy(one.args)
    printed = io.StringIO()
    value = error = None
    # What a function prints or warns belongs into why(): nbgrader counts any text on stderr as a failure.
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = function(*args)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # SystemExit too: a check must outlive the code it checks
            error = raised
    call = _one_line(f"{name}({', '.join(_shorten.repr(argument) for argument in one.args)})")
    details = f"{name}{one.args!r}\n{printed.getvalue()}"

    def failed(got, want, hint):
        trace = "" if error is None else "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return _Failure(got, want, hint, call, details + trace, error, issubclass(type(error), NotImplementedError))

    wanted = one.raises.__name__ if one.raises else _show(one.want)
    if error is not None:
        if one.raises and issubclass(type(error), one.raises):
            return None
        return failed(_describe(error), wanted, one.hint)
    if one.raises:
        return failed(_show(value), wanted, one.hint)
    found = difference(value, one.want)
    if found:
        path, got, want, hint = found
        if value is None:
            hint = NONE_HINT
        elif not hint or path and hint == FIELDS_HINT:  # which keys an inner dict has is the case's own matter
            hint = one.hint
        elif hint not in (NUMPY_HINT, FIELDS_HINT):
            hint = f"{hint} · {one.hint}"
        hint = next((text for mistake, text in one.mistakes if difference(got, mistake) is None), hint)
        at = f"{path} = " if path else ""
        return failed(at + _show(got), at + _show(want), hint)
    for before, after in zip(one.args, args):
        if difference(after, before):
            return failed(_show(after), _show(before), MUTATION_HINT)
    return None


def _describe(error):
    """Type, message and the line where the learner's code raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (line {frames[-1].lineno} in {frames[-1].name})" if len(frames) > 1 else ""
    try:
        message = str(error)
    except BaseException:  # a learner's exception may be broken itself
        message = "(no readable message)"
    return f"{type(error).__name__}: {_one_line(message)}{place}"


def _show(value):
    try:
        return _one_line(_shorten.repr(value))
    except BaseException:  # so may a learner's repr
        return f"<{type(value).__name__}>"


def _one_line(text):
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]} …"


@contextlib.contextmanager
def _replaced(namespace, stand_ins):
    mine = dict(namespace)
    for signature, answers in stand_ins.items():
        name, parameters = re.fullmatch(r"(\w+)\((.*)\)", signature).groups()
        namespace[name] = _recorded(name, parameters.split(", "), answers)
    try:
        yield
    finally:
        for signature in stand_ins:
            name = signature.partition("(")[0]
            del namespace[name]
            if name in mine:
                namespace[name] = mine[name]


def _recorded(name, parameters, answers):
    """A function that looks its answers up, by position or by keyword."""
    def answer(*args, **kwargs):
        given = [*args, *(kwargs[parameter] for parameter in parameters[len(args):] if parameter in kwargs)]
        for exact in (True, False):
            for known, result in answers:
                if len(known) == len(given) and all(map(_same if exact else _covers, given, known)):
                    return copy.deepcopy(result)
        raise LookupError(f"{name} was called with arguments that are not in the task")
    answer.recorded = parameters, answers  # for a grader that runs the learner's code elsewhere
    return answer


def _same(given, known):
    return difference(given, known) is None


def _covers(given, known):
    """Is it the known dict with some fields of the learner's added?"""
    if not (isinstance(given, dict) and isinstance(known, dict)):
        return _same(given, known)
    return all(key in given and _same(given[key], value) for key, value in known.items())


def _label(test_id):
    """("T2", "units") for test_handoff_units; the id itself where the build has declared nothing."""
    for label, todo in _todos.items():
        if test_id in todo["tests"]:
            return label, test_id.removeprefix(f"test_{todo['title']}").strip("_")
    return test_id, ""


def _seed():
    return os.environ.get("COURSE_SEED", "39")


def _raise_line(kind, line, cause):
    error = kind(line)
    error._render_traceback_ = lambda: [line]  # IPython shows this in place of its traceback
    raise error from cause
