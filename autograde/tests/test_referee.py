"""Verdicts: the same as in a notebook for honest answers, and nothing gained by others."""
import contextlib
import io
import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autograde import referee, wire
from autograde.chapter import load_chapters
from autograde.rehearsal import cells_to_run, rehearse
from autograde.sandbox import Limits, Sandbox, Stopped, sandbox_available

WHY_NOT = sandbox_available()
needs_sandbox = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "")
CHAPTERS = {chapter.name[:3]: chapter for chapter in load_chapters()}
EXAMS = {name: referee.prepare(chapter) for name, chapter in CHAPTERS.items()}
RUNS = {
    name: cells_to_run(chapter, solved=[todo.grade_id for todo in chapter.todos]) for name, chapter in CHAPTERS.items()
}
SOLVED = {name: [(cell[0], cell[2]) for cell in run if not cell[1] and cell[0] != "toolkit"]
          for name, run in RUNS.items()}
SHORT = Limits(cell_s=1, call_s=0.7, memory_mb=300)
each_chapter = pytest.mark.parametrize("name", CHAPTERS)


@pytest.fixture(scope="module")
def box():
    with Sandbox(SHORT) as made:
        yield made


def judged(name, box, **replaced):
    """The Outcome of the solved chapter with some cells replaced; a list stands for several cells."""
    cells = []
    for todo, source in SOLVED[name]:
        new = replaced.pop(todo, source)
        cells += [(todo, one) for one in new] if isinstance(new, list) else [(todo, new)]
    assert not replaced
    return referee.judge(EXAMS[name], cells, box)


def lost(outcome):
    return {test_id for test_id, verdict in outcome.verdicts.items() if not verdict.passed}


def of(name, *todos):
    return {test_id for todo in CHAPTERS[name].todos if todo.grade_id in todos for test_id in todo.tests}


def rehearsed(name, todo, source):
    """The lines of this TODO's own test cells, run without a sandbox; None where one passes."""
    own = [cell for cell in RUNS[name] if not cell[1] or cell[0] in of(name, todo)]
    with contextlib.redirect_stdout(io.StringIO()):
        return rehearse(own, override={todo: source})


# ---- the same as in a notebook ----

@needs_sandbox
@each_chapter
def test_solved_chapters_pass_with_the_lines_of_the_notebook(name, box):
    outcome = judged(name, box)
    assert lost(outcome) == set() and outcome.notes == () and {run.error for run in outcome.cells} == {""}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        rehearse(RUNS[name])
    visible = [line for line in printed.getvalue().splitlines() if "hidden checks" not in line]
    assert [verdict.line for verdict in outcome.verdicts.values()] == visible


@needs_sandbox
@each_chapter
def test_unfinished_chapters_fail_as_unfinished(name, box):
    run = cells_to_run(CHAPTERS[name], solved=())
    cells = [(cell[0], cell[2]) for cell in run if not cell[1] and cell[0] != "toolkit"]
    outcome = referee.judge(EXAMS[name], cells, box)
    with contextlib.redirect_stdout(io.StringIO()):
        expected = {test_id: line.split(": ", 1)[1] for test_id, line in rehearse(run).items()}
    assert {test_id: verdict.line for test_id, verdict in outcome.verdicts.items()} == expected


def variants(step):
    found = []
    for name, chapter in CHAPTERS.items():
        wrong = [variant for variant in chapter.variants if variant.kind == "wrong"]
        right = [variant for variant in chapter.variants if variant.kind == "right"]
        # State that is kept between calls is where the way of asking could show.
        chosen = [v for n, v in enumerate(wrong) if n % step == 0 or "kept" in v.name or "state" in v.name]
        found += [pytest.param(name, v, id=f"{name}-{v.todo}-{v.name}") for v in [*chosen, *right]]
    return found


def assert_the_same(name, variant, box):
    todo = variant.todo
    outcome = judged(name, box, **{todo: [dict(SOLVED[name])[todo], variant.source]})
    expected = rehearsed(name, todo, variant.source)
    assert {test_id: outcome.verdicts[test_id].line for test_id in lost(outcome)} == {
        test_id: line.split(": ", 1)[1] for test_id, line in expected.items() if line}


@needs_sandbox
@pytest.mark.parametrize(("name", "variant"), variants(step=9))
def test_verdicts_and_lines_are_those_of_the_notebook(name, variant, box):
    assert_the_same(name, variant, box)


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant"), variants(step=1))
def test_every_verdict_and_line_is_that_of_the_notebook(name, variant, box):
    assert_the_same(name, variant, box)


def test_every_test_cell_is_recorded_with_the_answers_it_wants():
    for exam in EXAMS.values():
        assert all(test.checks and len(test.checks) == 2 for test in exam.tests)
        assert [test.test_id for test in exam.tests] == [
            test_id for todo in exam.chapter.todos for test_id in todo.tests]


def test_the_seed_of_the_course_decides_on_the_hidden_cases(monkeypatch):
    def hidden():
        return [test.checks[1].calls for test in referee.prepare(CHAPTERS["39a"]).tests]

    first = hidden()
    assert hidden() == first
    monkeypatch.setenv("COURSE_SEED", "4711")
    assert hidden() != first


@needs_sandbox
def test_a_test_cell_that_does_more_than_check_runs_as_it_is(tiny, box):
    old = 'check("test_double", "double", [case(3, want=6, hint="add", mistakes=[(9, "squared")])])'
    exam = referee.prepare(tiny({old: "items = [1]\nassert double(3) == 6\nprint('seen', double(number=4))\n" + old}))
    assert exam.tests[0].checks is None
    right = referee.judge(exam, [("double", "def double(number):\n    return 2 * number")], box)
    assert right.verdicts["test_double"] == referee.Verdict(True, "seen 8")
    wrong = referee.judge(exam, [("double", "def double(number):\n    return 7")], box)
    assert not wrong.verdicts["test_double"].passed
    exits = referee.judge(exam, [("double", "def double(number):\n    raise SystemExit")], box)
    assert "RuntimeError" in exits.verdicts["test_double"].line


# ---- order, helpers and habits ----

@needs_sandbox
def test_each_todo_is_checked_before_the_next_one_runs(box):
    shared = "\ndef clash():\n    return 'mine'\n"
    first = f"def clash(a, b):\n    return a > b\n{SOLVED['39b'][0][1]}"
    first = first.replace('request.get("prompt_tokens", 0) > long_prompt_threshold',
                          'clash(request.get("prompt_tokens", 0), long_prompt_threshold)')
    assert "clash(request" in first
    assert lost(judged("39b", box, classify=first, handoff=shared + SOLVED["39b"][1][1])) == set()


@needs_sandbox
def test_answers_may_stand_in_helper_cells(box):
    (todo, source), *others = SOLVED["39a"]
    cells = [(todo, "# below"), ("", source), *others]
    assert lost(referee.judge(EXAMS["39a"], cells, box)) == set()
    assert lost(referee.judge(EXAMS["39a"], [*others, ("", source)], box)) == set()
    assert lost(referee.judge(EXAMS["39a"], others, box)) == of("39a", "tiers")
    assert lost(referee.judge(EXAMS["39a"], [], box)) == of("39a", "tiers", "policy", "outcome")


@needs_sandbox
@pytest.mark.parametrize("scratch", [
    "%pip install numpy\n!ls -la\n%matplotlib inline\nfiles = !ls\nprint(files)\nlen?", "%%bash\nrm -rf /", "1 / 0",
    "%%writefile x.py\nnothing", "import sys\nsys.exit()", "import os\nos._exit(0)", "name = input()", "print（1）",
    "while True:\n    pass", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "x = [0] * 10**11",
    "await nothing()", "from IPython.display import display\ndisplay(1)", "scorecard()\nwhy('T1')", "\0", "\ud800",
    "(" * 10_000, "",
])
def test_a_scratch_cell_costs_nothing(scratch, box):
    outcome = judged("39a", box, tiers=[scratch, SOLVED["39a"][0][1]])
    assert lost(outcome) == set()


@needs_sandbox
def test_cell_magics_that_run_their_cell_are_run(box):
    source = SOLVED["39a"][0][1]
    for magic in ("%%time\n", "%%timeit -n1 -r1\n", "%%capture out\n", "%%time\n%%capture\n", "\n%%time \n"):
        assert lost(judged("39a", box, tiers=magic + source)) == set()
    assert lost(judged("39a", box, tiers=f"%matplotlib inline\n{source}\n!ls")) == set()


@needs_sandbox
def test_names_that_the_released_toolkit_cell_imports_are_there(box):
    source = SOLVED["39a"][0][1].replace("return counts", "return copy.deepcopy(counts)")
    assert "copy" in EXAMS["39a"].imports and "copy.deepcopy" in source
    assert lost(judged("39a", box, tiers=source)) == set()


@needs_sandbox
def test_a_dropped_cell_is_told_and_the_others_keep_their_names(box):
    outcome = judged("39a", box, tiers=["HELPER = 5", "import os\nos._exit(1)", SOLVED["39a"][0][1] + "\nHELPER"])
    assert lost(outcome) == set() and "ended itself (exit 1)" in outcome.notes[0]
    assert [run.error != "" for run in outcome.cells[:3]] == [False, True, False]


@needs_sandbox
def test_what_cells_print_is_kept_and_shortened(box):
    outcome = judged("39a", box, tiers=["print('hello')", "print('x' * 10**7)", SOLVED["39a"][0][1]])
    assert outcome.cells[0].printed == "hello\n" and len(outcome.cells[1].printed) == 1 << 16


# ---- hangs, deaths, floods ----

BODIES = {
    "spin": "while True:\n        pass", "sleep": "import time; time.sleep(60)",
    "print": "while True:\n        print('x' * 100)",
    "exit": "import os; os._exit(0)", "crash": "import ctypes; ctypes.string_at(0)",
    "memory": "return [bytearray(1 << 24) for _ in range(10**4)]",
    "flood": "import os\n    while True:\n        os.write(3, b'x' * 10**6)",
    "garbage": "import os; os.write(3, b'v[' * 1000 + b'\\n' * 1000)", "recursion": "return broken(*args)",
    "hang up": "import os; os.close(3); import time; time.sleep(60)",
    "fork": "import os\n    while True:\n        os.fork()",
}


@needs_sandbox
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_broken_function_costs_only_its_own_todo_and_little_time(body, box):
    function = CHAPTERS["39b"].todos[0].functions[0]
    start = time.monotonic()
    outcome = judged("39b", box, classify=f"def {function}(*args):\n    {body}\nbroken = {function}")
    assert lost(outcome) == of("39b", "classify")
    assert all(outcome.verdicts[test_id].line.startswith("[T1] ") for test_id in of("39b", "classify"))
    assert time.monotonic() - start < 15


@needs_sandbox
def test_recorded_answers_stand_in_for_a_function_that_hangs(box):
    function = CHAPTERS["39b"].todos[2].functions[0]
    outcome = judged("39b", box, capability=f"def {function}(request, pool):\n    while True:\n        pass")
    assert lost(outcome) == of("39b", "capability")
    line = outcome.verdicts["test_capability"].line
    assert line == f"[T3] {function}: 0.7 秒后仍未结束，已停止 · stopped after 0.7 s"
    assert "passes with the reference answers" in outcome.verdicts["test_routing"].line


@needs_sandbox
def test_all_time_together_is_limited():
    function = {todo.grade_id: todo.functions[0] for todo in CHAPTERS["39b"].todos}
    stuck = {todo: f"def {name}(*args):\n    while True:\n        pass" for todo, name in function.items()}
    with Sandbox(Limits(call_s=1, submission_s=3)) as small:
        start = time.monotonic()
        outcome = judged("39b", small, **stuck)
        assert time.monotonic() - start < 6
    assert lost(outcome) == of("39b", *function)
    assert "used up" in outcome.verdicts["test_routing"].line


@needs_sandbox
def test_many_deadly_cells_are_not_restarted_for_ever(box):
    start = time.monotonic()
    outcome = judged("39a", box, tiers=["import os\nos._exit(0)"] * 200 + [SOLVED["39a"][0][1]])
    assert time.monotonic() - start < 10 and len(outcome.notes) <= referee.MOST_NOTES
    assert len(outcome.verdicts) == 12


@needs_sandbox
def test_slow_functions_are_asked_one_by_one(box):
    name = CHAPTERS["39a"].todos[0].functions[0]
    slow = (f"{SOLVED['39a'][0][1]}\n_fast = {name}\n"
            f"def {name}(*args):\n    import time; time.sleep(0.03)\n    return _fast(*args)")
    assert lost(judged("39a", box, tiers=slow)) == set()


# ---- lies ----

FIELDS = "['prompt_heavy', 'decode_heavy', 'balanced']"
LIES = {
    "always equal": """
class E(str):
    def __eq__(s, o): return True
    def __ne__(s, o): return False
    def __hash__(s): return 0
    def __iter__(s): return iter(())
    def __len__(s): return 0
def {f}(*args):
    return E()""",
    "lying dict": f"""
class D(dict):
    def __eq__(s, o): return True
    def __iter__(s): return iter({FIELDS})
    def __missing__(s, k): return 0
    def items(s): return []
    def keys(s): return {FIELDS}
def {{f}}(*args):
    return D()""",
    "other type": "def {f}(*args):\n    return object()",
    "generator": "def {f}(*args):\n    yield 1",
    "value and error": "def {f}(*args):\n    import os\n    os.write(3, b'v1\\tnull\\n')\n    raise AssertionError",
    "raises AssertionError": "def {f}(*args):\n    raise AssertionError('[T1] ok')",
    "a class": "class {f}:\n    def __init__(self, *args): pass",
    "no function": "{f} = 5",
    "patched reply": "import sys\nsys.modules['wire'].encode = lambda value: 'true'\ndef {f}(*args):\n    return 1",
    "empties arguments": "def {f}(requests, *args):\n    requests.clear()",
    "own exception": "class AssertionError(Exception): pass\ndef {f}(*args):\n    raise AssertionError('ok')",
    "system exit": "def {f}(*args):\n    raise SystemExit(0)",
    "interrupt": "def {f}(*args):\n    raise KeyboardInterrupt",
    "generator exit": "def {f}(*args):\n    raise GeneratorExit",
    "stop": "def {f}(*args):\n    raise StopIteration",
    "odd arguments": "def {f}(*args):\n    raise UnicodeDecodeError('a', b'b', 0, 1, 'c')",
    "group": "def {f}(*args):\n    raise ExceptionGroup('g', [ValueError()])",
    "error that fails": "class E(Exception):\n    def __str__(self): raise ValueError\ndef {f}(*args):\n    raise E",
    "trace": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\ndef {f}(*args):\n    pass",
    "threads": """
import threading, os
def flood():
    while True:
        os.write(3, b'vtrue\\n')
threading.Thread(target=flood, daemon=True).start()
def {f}(*args):
    pass""",
}


@needs_sandbox
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_lies_earn_nothing_and_stop_nobody(lie, box):
    chapter = CHAPTERS["39a"]
    cells = [(todo.grade_id, lie.replace("{f}", todo.functions[0])) for todo in chapter.todos]
    outcome = referee.judge(EXAMS["39a"], cells, box)
    assert lost(outcome) == of("39a", "tiers", "policy", "outcome")
    assert all("\n" not in verdict.line and verdict.line.startswith("[T") for verdict in outcome.verdicts.values())
    assert lost(judged("39a", box)) == set()


@needs_sandbox
def test_hidden_inputs_do_not_reach_the_line(box):
    name = CHAPTERS["39a"].todos[0].functions[0]
    answers = {repr(json.loads(call)[0]): "x" for test in EXAMS["39a"].tests[:4] for call in test.checks[0].calls}
    right = SOLVED["39a"][0][1]
    spy = f"{right}\n_right = {name}\nVISIBLE = {set(answers)!r}\ndef {name}(*args):\n" \
          "    if repr(list(args)) in VISIBLE:\n        return _right(*args)\n    raise ValueError(repr(args))"
    outcome = judged("39a", box, tiers=spy)
    assert lost(outcome) == of("39a", "tiers")
    for test_id in of("39a", "tiers"):
        line = outcome.verdicts[test_id].line
        assert "hidden checks" in line and "prompt_tokens'" not in line and "ValueError" not in line


def test_recorded_answers_are_never_told_before_their_own_todo_is_decided():
    for exam in EXAMS.values():
        decided = []
        for test in exam.tests:
            for check in test.checks:
                told = {key.partition("(")[0] for key in check.kwargs.get("stand_ins") or ()}
                assert told <= set(decided)
            decided += test.todo.functions


# ---- hostile replies, without a sandbox ----

class Puppet:
    """A sandbox whose every reply is made up."""

    limits = Limits()

    def __init__(self, reply):
        self.reply = reply

    def open(self, *, arrays):
        return self

    def ask(self, lines, *, replies, seconds):
        return [self.reply(lines[0]) for _ in range(replies)]

    def close(self):
        return 0.0


def ready(line):
    """The reply to a cell: all functions are there."""
    functions = json.loads(line).get("functions")
    return functions and wire.encode(["", "", functions, False]).encode()


PIECES = st.lists(st.sampled_from([
    b"v", b"e", b"?", b"\t", b"null", b"true", b"[]", b"[[],{},0]", b'[["ValueError"],"m","w"]', b'{"!":["tuple",[]]}',
    b'[["KeyboardInterrupt"],"",""]', b'[["__import__"],"",""]', b'[["SystemExit"],"",""]', b"\xff", b'"shared"', b"{",
    b'{"prompt_heavy":0,"decode_heavy":0,"balanced":0}', b'{"!":["other","x","y"]}', b'[["BaseException"],"",""]',
    b'{"!":["numpy","int8",[],"AA==","5",true]}', b"NaN", b"1e999", b'[1,"2"]',
]) | st.binary(max_size=5), max_size=4).map(b"".join)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PIECES)
def test_whatever_is_replied_nothing_is_raised_and_nothing_earned(reply):
    outcome = referee.judge(EXAMS["39a"], SOLVED["39a"], Puppet(lambda line: ready(line) or reply))
    assert len(lost(outcome)) >= 11, "at most one check wants the same answer everywhere"
    assert all("\n" not in verdict.line for verdict in outcome.verdicts.values())


@settings(max_examples=40, deadline=None)
@given(PIECES | st.sampled_from([
    b"[]", b'[1,2,3,4]', b'["","",5,true]', b'["","",[[1]],0]', b'["","",["nope"],0]', b'[{"a":1},[],{},null]',
    b'["","",[{"!":["other","x","y"]}],0]']))
def test_whatever_is_replied_to_a_cell_nothing_is_raised(reply):
    outcome = referee.judge(EXAMS["39a"], SOLVED["39a"], Puppet(lambda line: reply))
    assert lost(outcome) == of("39a", "tiers", "policy", "outcome")


def test_a_process_that_never_answers_is_no_crash():
    def dead(line):
        raise Stopped("dead")

    outcome = referee.judge(EXAMS["39b"], SOLVED["39b"], Puppet(dead))
    assert len(lost(outcome)) == 17 and len(outcome.notes) <= referee.MOST_NOTES


# ---- IPython's syntax ----

def test_plain_cells_are_left_as_they_are():
    for source in ("x = 1", "print('50 %')", "a = b % c", "def f():\n    return {'?': '!'}", "%%bash\nls"[2:]):
        assert referee._python(source) == source


def test_magics_and_shell_lines_become_calls():
    assert referee._python("!ls\n%time x = 1") == (
        "get_ipython().system('ls')\nget_ipython().run_line_magic('time', 'x = 1')\n")
    assert referee._python("%%bash\nrm x").startswith("get_ipython().run_cell_magic('bash'")
    assert referee._python("  x = 1\n  y = 2") == "x = 1\ny = 2\n"


@pytest.mark.parametrize("source", [
    "%a\n" * 6000, "\n" * 10**6 + "%", "?" * 10**5, "%%time\n" * 10**5, " " * 10**6, "= " * 10**5, "!" + "(" * 10**5,
    "%a\n" * 40 + "x = [\n" * 3000, "x = '''" + "?\n" * 9000,
], ids=range(9))
def test_hostile_cells_are_read_in_time(source):
    start = time.process_time()
    referee._python(source)
    assert time.process_time() - start < 5
