"""The checks themselves: verdict lines, types, hostile objects, partial help, what is never punished."""
import enum
import re
import warnings

import numpy as np
import pytest

from toolkit import checks
from toolkit.checks import case, check, demo, difference, hidden_rng, scorecard, why


@pytest.fixture(autouse=True)
def two_todos():
    checks.declare_todos({
        "T1": {"title": "need", "tests": {"test_need": 2, "test_need_bounds": 1}},
        "T2": {"title": "route", "tests": {"test_route": 2}},
    })
    yield
    checks.declare_todos({})


def failing_line(kind, *arguments, **options):
    with pytest.raises(kind) as caught:
        check(*arguments, **options)
    assert caught.value._render_traceback_() == [str(caught.value)]
    return str(caught.value)


def define(**functions):
    """Put functions where `check` looks for them: among the globals of its caller."""
    globals().update(functions)


def test_a_pass_prints_one_line(capsys):
    define(need=lambda n: n + 1)
    check("test_need", "need", [case(1, want=2, hint="h")])
    check("test_need_bounds", "need", [case(1, want=2, hint="h")])
    assert capsys.readouterr().out == "[T1] ok\n[T1] ok · bounds\n"


def test_an_unfinished_todo_is_not_a_wrong_one():
    def need(n):
        raise NotImplementedError("TODO 1")
    define(need=need)
    assert failing_line(NotImplementedError, "test_need", "need", [case(1, want=2, hint="h")]) == (
        "[T1] not done yet · 尚未完成"
    )


def test_a_wrong_value_names_both_values_the_place_and_the_call():
    define(need=lambda n: {"ms": 0.5, "mode": "transfer"})
    line = failing_line(AssertionError, "test_need", "need", [
        case(7, want={"mode": "transfer", "ms": 4.0}, hint="general", mistakes=[(0.5, "bits, not bytes")]),
    ])
    assert line == "[T1] got ms = 0.5, expected ms = 4.0 : bits, not bytes · need(7)"


def test_a_missing_function_is_named():
    globals().pop("need", None)
    assert "got nothing, expected a function need" in failing_line(
        AssertionError, "test_need", "need", [case(1, want=2, hint="h")])


def test_an_error_keeps_its_place_and_its_traceback(capsys):
    def need(n):
        print("debug", n)
        return {}["pool"]
    define(need=need)
    line = failing_line(AssertionError, "test_need", "need", [case(1, want=2, hint="h")])
    assert re.search(r"got KeyError: 'pool' \(line \d+ in need\), expected 2 : h", line)
    assert 'why("T1")' in line
    why("T1")
    shown = capsys.readouterr().out
    assert "debug 1" in shown and "Traceback" in shown and 'return {}["pool"]' in shown


def test_a_value_where_an_error_was_due():
    define(need=lambda n: 3)
    assert "got 3, expected ValueError : h" in failing_line(
        AssertionError, "test_need", "need", [case(0, raises=ValueError, hint="h")])


def test_a_subclass_of_the_error_is_right_and_another_error_is_not():
    def strict(n):
        raise UnicodeError("a ValueError subclass")

    def other(n):
        raise KeyError(n)
    define(need=strict)
    check("test_need", "need", [case(0, raises=ValueError, hint="h")])
    define(need=other)
    assert "got KeyError: 0" in failing_line(
        AssertionError, "test_need", "need", [case(0, raises=ValueError, hint="h")])


def test_sys_exit_in_an_answer_does_not_leave_the_check():
    def need(n):
        raise SystemExit(0)
    define(need=need)
    assert "got SystemExit: 0" in failing_line(AssertionError, "test_need", "need", [case(1, want=2, hint="h")])


def test_a_changed_input_is_told():
    def need(pools):
        return len([pools.pop()])
    define(need=need)
    assert checks.MUTATION_HINT in failing_line(
        AssertionError, "test_need", "need", [case([3, 4], want=1, hint="h")])


def test_state_between_calls_is_told():
    seen = []

    def need(n):
        seen.append(n)
        return len(seen)
    define(need=need)
    assert checks.STATE_HINT in failing_line(
        AssertionError, "test_need", "need", [case(5, want=1, hint="h"), case(6, want=2, hint="h")])


def test_prints_and_warnings_of_an_answer_stay_out_of_the_output(capsys):
    def need(n):
        print("noise")
        warnings.warn("noise", stacklevel=1)
        return n
    define(need=need)
    check("test_need", "need", [case(1, want=1, hint="h")])
    captured = capsys.readouterr()
    assert captured.out == "[T1] ok\n" and captured.err == ""


def test_a_hidden_check_shows_its_hint_but_no_data(monkeypatch):
    monkeypatch.setenv("COURSE_SEED", "7")
    define(need=lambda n: "mine-4711")
    line = failing_line(AssertionError, "test_need", "need", [case(90125, want="secret", hint="strict")], hidden=True)
    assert "strict" in line and "seed 7" in line
    assert not {"90125", "secret", "mine-4711"} & set(re.findall(r"[\w-]+", line))


def test_why_shows_no_hidden_data(capsys):
    define(need=lambda n: "mine-4711")
    failing_line(AssertionError, "test_need", "need", [case(90125, want="secret", hint="strict")], hidden=True)
    why("T1")
    assert "90125" not in capsys.readouterr().out


def test_the_seed_decides_the_hidden_cases(monkeypatch):
    first = [hidden_rng("test_need").random() for _ in range(2)]
    assert first[0] == first[1] != hidden_rng("test_route").random()
    monkeypatch.setenv("COURSE_SEED", "8")
    assert hidden_rng("test_need").random() != first[0]


def able(request, pool):
    return {"ok": pool["ok"]}


def test_recorded_answers_stand_in_for_a_wrong_todo(capsys):
    define(able=lambda request, pool: {"ok": False}, route=lambda pool: able({}, pool)["ok"])
    answers = {"able(request, pool)": [(({}, {"ok": True}), {"ok": True})]}
    check("test_route", "route", [case({"ok": True}, want=True, hint="h")], stand_ins=answers)
    assert "[T2] ok" in (out := capsys.readouterr().out) and "able" in out
    assert able({}, {"ok": True}) == {"ok": False}, "the learner's own function is put back"


def test_recorded_answers_are_found_by_keyword_too():
    define(able=lambda request, pool: {"ok": False}, route=lambda pool: able(pool=pool, request={})["ok"])
    answers = {"able(request, pool)": [(({}, {"ok": True}), {"ok": True})]}
    check("test_route", "route", [case({"ok": True}, want=True, hint="h")], stand_ins=answers)


@pytest.mark.parametrize("mine", [None, lambda *args, **kwargs: {"ok": False}])
def test_recorded_answers_do_not_depend_on_the_wrong_todo(mine):
    define(route=lambda pool: able(request={}, pool={**pool, "index": 0})["ok"])
    answers = {"able(request, pool)": [(({}, {"ok": True}), {"ok": True})]}
    try:
        define(able=mine) if mine else globals().pop("able")
        check("test_route", "route", [case({"ok": True}, want=True, hint="h")], stand_ins=answers)
        assert globals().get("able") is mine
    finally:
        define(able=lambda request, pool: {"ok": pool["ok"]})


def test_state_is_told_although_recorded_answers_fail_too():
    seen = []

    def route(pool):
        seen.append(pool)
        return len(seen)
    define(able=able, route=route)
    cases = [case({"ok": True}, want=1, hint="h")]
    assert checks.STATE_HINT in failing_line(
        AssertionError, "test_route", "route", cases, stand_ins={"able(request, pool)": []})


def test_a_forgotten_return_is_told():
    define(need=lambda n: None)
    assert checks.NONE_HINT in failing_line(AssertionError, "test_need", "need", [case(1, want="a", hint="h")])


def test_other_fields_are_told_but_not_in_place_of_an_inner_hint():
    define(need=lambda n: {"mod": "x"})
    assert checks.FIELDS_HINT in failing_line(
        AssertionError, "test_need", "need", [case(1, want={"mode": "x"}, hint="inner")])
    define(need=lambda n: {"rejected": {"a": []}})
    line = failing_line(AssertionError, "test_need", "need", [case(1, want={"rejected": {"b": []}}, hint="inner")])
    assert "inner" in line and checks.FIELDS_HINT not in line


def test_recorded_answers_do_not_repair_a_wrong_answer():
    define(able=lambda request, pool: {"ok": True}, route=lambda pool: not able({}, pool)["ok"])
    answers = {"able(request, pool)": [(({}, {"ok": True}), {"ok": True})]}
    assert "got False, expected True" in failing_line(
        AssertionError, "test_route", "route", [case({"ok": True}, want=True, hint="h")], stand_ins=answers)


def test_the_scorecard_counts_what_passed():
    define(need=lambda n: n, route=lambda n: 0)
    check("test_need", "need", [case(1, want=1, hint="h")])
    failing_line(AssertionError, "test_route", "route", [case(1, want=1, hint="h")])
    card = scorecard()
    assert card.rows == [("T1", "need", 2, 3), ("T2", "route", 0, 2)]
    assert "2 / 5" in repr(card) and "<td>2 / 3</td>" in card._repr_html_()


def test_a_demo_never_stops_the_notebook(capsys):
    with demo("T1"):
        raise NotImplementedError
    with demo("T2"):
        raise KeyError("pool")
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "[T1] not done yet · 尚未完成" and out[1].startswith("[T2] KeyError: 'pool'")


def test_a_demo_says_whose_checks_fail_and_leaves_why_alone(capsys):
    define(need=lambda n: n, route=lambda n: 0)
    for test_id in ("test_need", "test_need_more"):
        check(test_id, "need", [case(1, want=1, hint="h")])
    failing_line(AssertionError, "test_route", "route", [case(1, want=1, hint="h")])
    capsys.readouterr()
    with demo("T1", "T2"):
        raise KeyError("pool")
    for label in ("T1", "T2", "demo"):
        why(label)
    out = capsys.readouterr().out
    assert out.startswith("[T2] 还有检查没通过") and out.count("checks fail") == 1
    assert "[T1] no failed check so far" in out and "route(1,)" in out and out.count("KeyError: 'pool'") == 2
    define(need=lambda n: n, route=lambda n: n)
    check("test_route", "route", [case(1, want=1, hint="h")])
    capsys.readouterr()
    with demo("T1", "T2"):
        print("fine")
    assert capsys.readouterr().out == "fine\n"


class Mode(str, enum.Enum):
    TRANSFER = "transfer"


class Anything:
    """Equal to everything, as some learner's object may be."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


class Sly(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


@pytest.mark.parametrize(("got", "want"), [
    ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
    ({Mode.TRANSFER: 1}, {"transfer": 1}),
    (Mode.TRANSFER, "transfer"),
    (4, 4.0),
    (4.0 + 1e-12, 4.0),
    (type("Fields", (dict,), {})(a=1), {"a": 1}),
    (float("inf"), float("inf")),
    ((1, ["x"]), (1, ["x"])),
    (None, None),
])
def test_what_is_never_punished(got, want):
    assert difference(got, want) is None


@pytest.mark.parametrize(("got", "want"), [
    (True, 1), (1, True), (1, False), (1.0, 1), (0, None), ("1", 1), (1, "1"), (("a",), ["a"]), (["a"], ("a",)),
    (["a", "b"], ["b", "a"]), (["a"], ["a", "a"]), ({"a": 1}, {"a": 1, "b": 2}), ({"a": 1, "b": 2}, {"a": 1}),
    (4.0001, 4.0), (float("nan"), 4.0), (Anything(), "transfer"), (Anything(), 4), (Anything(), None),
    (Anything(), True), (Anything(), {"a": 1}), (Anything(), [1]), (Sly("recompute"), "transfer"),
    (np.float64(4.0), 4.0), (np.bool_(True), True), (np.int64(1), 1), (np.array([1]), [1]), ("Transfer", "transfer"),
])
def test_what_differs(got, want):
    assert difference(got, want) is not None


@pytest.mark.parametrize("scalar", [np.float64(4.0), np.int64(4), np.bool_(True), np.str_("transfer")])
def test_numpy_scalars_get_their_own_hint(scalar):
    assert difference({"x": scalar}, {"x": scalar.item()})[3] == checks.NUMPY_HINT


class Liar:
    """Says that it is a str, a number or whatever is asked for."""

    def __init__(self, kind):
        self.kind = kind

    @property
    def __class__(self):
        return self.kind


class Unshowable(ValueError):
    def __str__(self):
        raise SystemExit

    __repr__ = __str__


@pytest.mark.parametrize("want", ["transfer", {"a": 1}, [1], 4, 4.0, True, None])
def test_an_object_that_lies_about_its_class_is_another_value(want):
    assert difference(Liar(type(want)), want) is not None


def test_what_a_broken_object_says_cannot_break_the_check():
    odd = type("Odd", (), {"__module__": None, "__repr__": lambda self: "two\nlines" * 99})()
    for value in (odd, Unshowable(), 10**400, "x" * 10**6):
        define(need=lambda n, value=value: value)
        line = failing_line(AssertionError, "test_need", "need", [case(1, want=4.0, hint="h")])
        assert "\n" not in line and len(line) < 400

    def raising(n):
        raise Unshowable
    define(need=raising)
    assert "Unshowable" in failing_line(AssertionError, "test_need", "need", [case(1, want=4.0, hint="h")])
    check("test_need", "need", [case(1, raises=ValueError, hint="h")])


def test_an_error_that_only_looks_like_the_right_one_is_wrong():
    class Fake(Exception):
        __class__ = ValueError

    def need(n):
        raise Fake
    define(need=need)
    failing_line(AssertionError, "test_need", "need", [case(1, raises=ValueError, hint="h")])


class SameText(str):
    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other


def test_a_key_given_twice_is_another_field():
    assert difference({"a": 999, SameText("a"): 1}, {"a": 1})[3] == checks.FIELDS_HINT


def test_a_wrong_type_names_both_types_and_keeps_the_hint():
    define(need=lambda n: {"count": 5.0})
    line = failing_line(AssertionError, "test_need", "need", [case(1, want={"count": 5}, hint="count them")])
    assert "got count = 5.0, expected count = 5 : 类型不对 · wrong type: float, expected int · count them" in line


def test_a_check_with_an_unusable_expectation_is_our_fault():
    with pytest.raises(TypeError, match="a check expects a set"):
        difference({1}, {1})
