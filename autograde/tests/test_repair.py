"""Broken but honest notebooks: every kind of breakage keeps the marks that its answers deserve."""

import contextlib
import copy
import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograde import intake, pieces, reading
from autograde.chapter import nbgrader, solved
from autograde.repair import is_stub, repair
from autograde.tests.repairing import CHAPTERS, NO_BANK, checks_of, fractions, mangle, notebooks

BANK = mangle()
CHAPTER = CHAPTERS["39b"]
T1, T2, T3, T4 = ("classify", "handoff", "capability", "routing")
RIGHT = "def classify_resource_need(request, long_prompt_threshold, long_decode_threshold):\n    return {body}\n"
BODY = (
    '{(1, 0): "prefill", (0, 1): "decode"}.get((int(request.get("prompt_tokens", 0) > long_prompt_threshold), '
    'int(request.get("decode_tokens", 0) > long_decode_threshold)), "shared")'
)
ANSWER, WRONG = RIGHT.format(body=BODY), RIGHT.format(body='"wrong"')


def candidate(notebook, name="x.ipynb"):
    """A notebook (dict, or the text of a script) as it comes out of intake."""
    data = notebook.encode() if isinstance(notebook, str) else json.dumps(notebook).encode()
    return intake.Candidate(name, *reading.read(name, data))


# ---- the bank


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    """{chapter: {case: (submission, found, repaired, fraction)}}, all of a chapter run in one subprocess."""
    results = {}
    for key, chapter in CHAPTERS.items():
        options = BANK.Options([todo.grade_id for todo in chapter.todos], filename=f"{chapter.name}.ipynb", big_mb=2)
        cases = BANK.build_all(*notebooks(key), options)
        folder = tmp_path_factory.mktemp(key)
        BANK.write_all(cases, folder)
        rows = {}
        for name, case in cases.items():
            found = intake.find_submissions(folder / name, chapters=CHAPTERS.values(), learner="li")
            made = [repair(chapter, one) for sub in found for one in sub.candidates]
            rows[name] = case, found, made[0] if made else None
        safe = [name for name, (case, _, made) in rows.items() if made and not case.danger]
        shares = dict(zip(safe, fractions(key, [rows[name][2].cells for name in safe]), strict=True))
        results[key] = {name: (*row, shares.get(name, 0.0)) for name, row in rows.items()}
    return results


@pytest.mark.skipif(BANK is None, reason=NO_BANK)
@pytest.mark.parametrize("key", CHAPTERS)
@pytest.mark.parametrize("name", BANK.CASES if BANK else [])
def test_bank(bank, key, name):
    case, found, repaired, share = bank[key][name]
    assert {sub.learner for sub in found} == {"li"}
    if case.danger:  # the sandbox's part; here: nothing was changed
        assert repaired.notes == () and len([1 for label, _ in repaired.cells if label == T1]) <= 1
        return
    assert round(share, 4) in case.accept, repaired
    if case.fair < 1 and name not in ("blank_release", "partly_done", "returns_tuple"):
        assert (repaired and repaired.problems) or any(sub.problems for sub in found), "no reason is given"


# ---- kinds beyond the bank: (how the solved notebook was changed) -> (fraction, what the learner reads)


def cell_of(notebook, grade_id):
    return next(c for c in notebook["cells"] if c.get("metadata", {}).get("nbgrader", {}).get("grade_id") == grade_id)


def text_of(cell):
    return "".join(cell["source"])


def code(source, **metadata):
    return {"cell_type": "code", "metadata": metadata, "source": source, "outputs": [], "execution_count": None}


def at(notebook, grade_id):
    return notebook["cells"].index(cell_of(notebook, grade_id))


def stub(grade_id):
    return copy.deepcopy(cell_of(notebooks("39b")[0], grade_id))


class Case:
    """A solved notebook to break; `insert` puts cells in front of (or behind) a cell."""

    def __init__(self, key="39b"):
        self.nb = notebooks(key)[1]

    def insert(self, grade_id, *cells, after=False):
        place = at(self.nb, grade_id) + after if grade_id else len(self.nb["cells"])
        self.nb["cells"][place:place] = [code(one) if isinstance(one, str) else one for one in cells]
        return self

    def set(self, grade_id, source):
        cell_of(self.nb, grade_id)["source"] = source
        return self

    def edit(self, grade_id, function):
        return self.set(grade_id, function(text_of(cell_of(self.nb, grade_id))))

    def each(self, function):
        for cell in self.nb["cells"]:
            function(cell)
        return self


def _strip(cell):
    cell["metadata"] = {}
    cell.pop("id", None)


def _no_metadata(cell):
    cell["metadata"] = {}


def _swap(case):
    one, other = cell_of(case.nb, T1), cell_of(case.nb, T2)
    one["source"], other["source"] = other["source"], one["source"]
    return case


def _retyped(kind, fence=""):
    case = Case()
    cell = cell_of(case.nb, T2)
    cell["cell_type"] = kind
    if fence:
        cell["source"] = f"My answer:\n\n```{fence}\n{text_of(cell)}\n```\nDone."
    return case


def _one_cell(case):
    """All the notebook's code in a single new cell."""
    everything = "\n\n".join(text_of(c) for c in case.nb["cells"] if c["cell_type"] == "code")
    case.nb["cells"] = [code(everything)]
    return case


def _merged_cells(case):
    """T1 and its checks merged into one cell by JupyterLab; T1 is wrong, and T2 stands in that cell too."""
    place = at(case.nb, T1)
    merged = [WRONG, *(text_of(c) for c in case.nb["cells"][place + 1 : place + 5]), text_of(cell_of(case.nb, T2))]
    case.nb["cells"][place]["source"] = "\n\n".join(merged)
    del case.nb["cells"][place + 1 : place + 5]
    case.nb["cells"].remove(cell_of(case.nb, T2))
    return case


def _two_meanings():
    """Two answers with a helper of one name: each check must see its own."""
    case = Case()
    case.edit(
        T1, lambda s: "def _pick(x):\n    return x\n\n\n" + s.replace('return "prefill"', 'return _pick("prefill")')
    )
    return case.edit(T2, lambda s: "def _pick(x):\n    return None\n\n\n" + s)


def _with_default(case, helper_place):
    case.edit(
        T2,
        lambda s: s.replace("recompute_ms: float)", "recompute_ms: float, digits=DIGITS)").replace(", 4)", ", digits)"),
    )
    return case.insert(helper_place, "DIGITS = 4")


BOTH = text_of(cell_of(notebooks("39b")[1], T1)) + "\n\n\n" + text_of(cell_of(notebooks("39b")[1], T2))
OWN = {
    "stub copied below": (lambda: Case().insert(T2, stub(T2), after=True), 1, "T2: there were several"),
    "stub copied to the end": (lambda: Case().insert(None, stub(T1), stub(T2)), 1, "several"),
    "copy finished, first wrong": (
        lambda: Case().insert(T1, {**stub(T1), "source": WRONG}),
        1,
        "the last finished one counts",
    ),
    "copy broken, first right": (
        lambda: Case().insert(T1, {**stub(T1), "source": "def classify_resource_need(:"}, after=True),
        1,
        "several",
    ),
    "copy at the end wins when both have the id": (
        lambda: Case().set(T1, WRONG).insert(None, {**stub(T1), "source": ANSWER}),
        1,
        "several",
    ),
    "answers in one cell, stubs left": (
        lambda: Case().set(T1, BOTH).set(T2, text_of(stub(T2))),
        1,
        "T2: the answer stood in another cell",
    ),
    "answers in one cell below the stubs": (
        lambda: Case().set(T1, text_of(stub(T1))).set(T2, text_of(stub(T2))).insert(None, BOTH),
        1,
        "T1, T2: the answer",
    ),
    "raw cell": (lambda: _retyped("raw"), 1, "had become text"),
    "markdown with a fence": (lambda: _retyped("markdown", "python"), 1, "had become text"),
    "texts of two cells swapped": (lambda: _swap(Case()), 1, "T1, T2: the answer stood in another cell"),
    "cell ids only": (lambda: Case().each(_no_metadata), 1, "lost its id"),
    "no ids at all": (lambda: Case().each(_strip), 1, "lost its id"),
    "no ids, checks edited": (
        lambda: Case().edit("test_handoff", lambda s: s + "\nprint('!')").each(_strip),
        1,
        "a check cell was changed",
    ),
    "no ids, tools edited": (
        lambda: Case().edit("toolkit", lambda s: s + "\nprint('!')").each(_strip),
        1,
        "the tools cell was changed",
    ),
    "every cell id the same": (lambda: Case().each(lambda c: c.update(id="a")), 1, ""),
    "helper cell above": (
        lambda: Case().insert(T2, "import math\nBITS = 8").edit(T2, lambda s: s.replace("* 8", "* math.floor(BITS)")),
        1,
        "",
    ),
    "helper cell far below, read when called": (
        lambda: Case().insert(None, "BITS = 8").edit(T2, lambda s: s.replace("* 8", "* BITS")),
        1,
        "",
    ),
    "helper cell below, read at once": (lambda: _with_default(Case(), None), 1, "out of order"),
    "helper in a check cell": (
        lambda: Case().edit("test_classify", lambda s: "BITS = 8\n" + s).edit(T2, lambda s: s.replace("* 8", "* BITS")),
        1,
        "a check cell was changed",
    ),
    "helper in place of a check cell": (
        lambda: (
            Case()
            .set("test_classify", "BITS = 0\nfor _ in range(8):\n    BITS += 1")
            .edit(T2, lambda s: s.replace("* 8", "* BITS"))
        ),
        1,
        "a check cell was changed",
    ),
    "answer in the tools cell": (
        lambda: Case().set(T1, text_of(stub(T1))).edit("toolkit", lambda s: s + "\n\n\n" + ANSWER),
        1,
        "taken out",
    ),
    "wrapped answer": (
        lambda: (
            Case()
            .set(T1, ANSWER.replace('"shared")', '"SHARED")'))
            .insert(
                "test_classify",
                "_first = classify_resource_need",
                RIGHT.format(body="_first(request, long_prompt_threshold, long_decode_threshold).lower()"),
            )
        ),
        1,
        "",
    ),
    "trial behind the checks": (lambda: Case().insert(T2, WRONG), 1, "several"),
    "change of mind before the checks": (lambda: Case().insert("test_classify", WRONG), 0.75, "T1: the answer"),
    "one helper name, two meanings": (_two_meanings, 1, ""),
    "table filled in another cell": (
        lambda: (
            Case()
            .insert(
                T2,
                "FACTORS = {}",
                "for name in ['bits']:\n    FACTORS[name] = 4",
                "FACTORS.update(bits=8)",
                "FACTORS['other'] = 3; print(FACTORS)",
            )
            .edit(T2, lambda s: s.replace("* 8", "* FACTORS['bits']"))
        ),
        1,
        "",
    ),
    "import from a demo cell": (
        lambda: (
            Case()
            .edit(T4, lambda s: s + "\n\n\nassert np.arange(2).sum() == 1")
            .edit(T4, lambda s: s.replace("reasons", "reasons"))
        ),
        1,
        "",
    ),
    "check called by hand": (
        lambda: Case().edit(
            T1,
            lambda s: s + '\n\n\ncheck("test_classify", "classify_resource_need", [case({}, 1, 1, want="x", hint="")])',
        ),
        1,
        "",
    ),
    "checks switched off": (
        lambda: (
            Case().set(T1, WRONG).edit("toolkit", lambda s: s + "\n\n\ndef check(*args, **options):\n    print('ok')")
        ),
        0.75,
        "the tools cell was changed",
    ),
    "given cell edited": (
        lambda: Case().set("given", "def select_serving_action(*a):\n    return 1"),
        1,
        "a given cell",
    ),
    "half broken cell": (
        lambda: Case().set(T1, BOTH.replace("transfer_ms = ", "transfer_ms （= ", 1)).insert(T2).set(T2, ""),
        0.75,
        "its functions that can run were kept, not T2",
    ),
    "broken cell with code in quotes": (lambda: Case().set(T1, 'x = （1）\n"""\n' + ANSWER + '"""\n'), 0.75, ""),
    "broken scratch cell": (lambda: Case().insert(T1, "print（1）"), 1, "not run"),
    "%%capture": (lambda: Case().edit(T2, lambda s: "%%capture out\n" + s), 1, "magics"),
    "%%timeit with options": (lambda: Case().edit(T2, lambda s: "\n%%timeit -n 1\n" + s), 1, "magics"),
    "two cell magics": (lambda: Case().edit(T2, lambda s: "%%capture\n%%time\n" + s), 1, "magics"),
    "line magics and shell lines inside": (
        lambda: Case().edit(T2, lambda s: "%matplotlib inline\n!pip list\nfiles = !ls\nclassify_resource_need?\n" + s),
        1,
        "magics",
    ),
    "%time on a helper": (
        lambda: Case().insert(T2, "%time BITS = 8").edit(T2, lambda s: s.replace("* 8", "* BITS")),
        1,
        "magics",
    ),
    "shell line in the function": (
        lambda: Case().edit(T2, lambda s: s.replace("    transfer_ms =", "    !echo hi\n    transfer_ms =", 1)),
        1,
        "magics",
    ),
    "prompts pasted along": (
        lambda: Case().set(
            T1,
            "".join(
                (">>> " if number == 0 else "... ") + line + "\n" for number, line in enumerate(ANSWER.splitlines())
            ),
        ),
        1,
        "",
    ),
    "whole cell indented": (lambda: Case().edit(T2, lambda s: re.sub("^", "    ", s, flags=re.M)), 1, ""),
    "lambda": (
        lambda: Case().set(
            T1, f"classify_resource_need = lambda request, long_prompt_threshold, long_decode_threshold: {BODY}"
        ),
        1,
        "",
    ),
    "star import": (
        lambda: Case().insert(T2, "from math import *").edit(T2, lambda s: s.replace("* 8", "* floor(8.5)")),
        1,
        "",
    ),
    "decorator from another cell": (
        lambda: (
            Case()
            .insert(T2, "def same(f):\n    return f", "import functools as ft")
            .edit(T2, lambda s: "@same\n@ft.wraps(print)\n" + s)
        ),
        1,
        "",
    ),
    "looked up by name": (
        lambda: (
            Case()
            .insert(T2, "def eight():\n    return 8")
            .edit(T2, lambda s: s.replace("* 8", "* globals()['eight']()"))
        ),
        1,
        "",
    ),
    "recursion limit": (
        lambda: (
            Case()
            .insert(T2, "import sys\nsys.setrecursionlimit(2500)")
            .edit(
                T2,
                lambda s: (
                    "def deep(n):\n    return n and 1 + deep(n - 1)\n\n\n" + s.replace("* 8", "* (deep(1800) - 1792)")
                ),
            )
        ),
        1,
        "",
    ),
    "function renamed": (lambda: Case().edit(T1, lambda s: s.replace("classify_resource_need", "classify")), 0.75, ""),
    "cell emptied": (lambda: Case().set(T1, ""), 0.75, ""),
    "partly written, raise left": (
        lambda: Case().set(T1, text_of(stub(T1)).replace("    raise", "    long = True\n    raise")),
        0.75,
        "",
    ),
    "checks merged into the answer": (lambda: _merged_cells(Case()), 0.75, "check cell was missing"),
    "all in one cell": (lambda: _one_cell(Case()), 1, "lost its id"),
    "classify exits at top level": (
        lambda: Case().insert(T3, "import sys, os\nprint(1)\nsys.exit()\nos._exit(0)"),
        1,
        "not run",
    ),
    "demo cells deleted and moved": (
        lambda: Case().each(lambda c: None).insert(T1, code("with demo('T1'):\n    1/0")),
        1,
        "",
    ),
}


@pytest.fixture(scope="module")
def own():
    repaired = {name: repair(CHAPTER, candidate(make().nb)) for name, (make, _, _) in OWN.items()}
    shares = fractions("39b", [one.cells for one in repaired.values()])
    return {name: (one, share) for (name, one), share in zip(repaired.items(), shares, strict=True)}


@pytest.mark.parametrize("name", OWN)
def test_own_cases(own, name):
    _, want, words = OWN[name]
    repaired, share = own[name]
    assert share == want, repaired
    assert any(words in note for note in repaired.notes) or not words, repaired.notes
    assert all(" · " in note and "\n" not in note for note in repaired.notes)


def test_a_lost_answer_has_a_reason(own):
    assert own["function renamed"][0].problems == (
        (T1, "没有找到函数 classify_resource_need · no function classify_resource_need was found"),
    )
    assert own["half broken cell"][0].problems[0][0] == T2
    assert "syntax error" in own["half broken cell"][0].problems[0][1]


@pytest.mark.parametrize("key", CHAPTERS)
@pytest.mark.parametrize("which", [0, 1])
def test_an_untouched_submission_runs_as_it_is_and_has_no_notes(key, which):
    chapter, notebook = CHAPTERS[key], notebooks(key)[which]
    repaired = repair(chapter, candidate(notebook))
    assert (repaired.notes, repaired.problems) == ((), ())
    ids = [c["metadata"]["nbgrader"]["grade_id"] for c in notebook["cells"] if "nbgrader" in c["metadata"]]
    assert [label for label, _ in repaired.cells] == [one for one in ids if one != "toolkit"]
    for label, source in repaired.cells:
        assert source == ("" if label.startswith("test_") else text_of(cell_of(notebook, label)))


@pytest.mark.parametrize("key", CHAPTERS)
def test_every_stub_is_unfinished_and_every_solution_and_variant_is_not(key):
    chapter = CHAPTERS[key]
    for cell in chapter.cells:
        meta = nbgrader(cell)
        if meta.get("solution"):
            handed_out = text_of(cell_of(notebooks(key)[0], meta["grade_id"]))
            assert is_stub(chapter, meta["grade_id"], handed_out)
            assert is_stub(chapter, meta["grade_id"], handed_out.replace("    # TODO", "    x = 1\n    # TODO", 1))
            assert not is_stub(chapter, meta["grade_id"], solved(cell.source))
    for variant in chapter.variants:
        assert not is_stub(chapter, variant.todo, variant.source), variant.name


def test_demo_cells_give_only_what_an_answer_needs():
    case = Case("39a")
    name = "select_fallback_policy"
    case.edit("policy", lambda s: s + f"\n\n\nKIND = class_of_one({{'prompt_tokens': 9000}})\nassert callable({name})")
    repaired = repair(CHAPTERS["39a"], candidate(case.nb))
    released = [source for label, source in repaired.cells if label == "" and "class_of_one" in source]
    assert len(released) == 1 and "azure_trace" not in released[0] and "demo(" not in released[0]
    assert fractions("39a", [repaired.cells]) == [1]


def test_a_cell_that_no_answer_needs_does_not_run():
    repaired = repair(CHAPTER, candidate(Case().insert(T1, "import torch\nx = torch.ones(2)", "print(1)").nb))
    assert not any("torch" in source for _, source in repaired.cells)
    assert repaired.notes[0].endswith("2 of your own cells are not needed by any answer: they were not run")


# ---- exports


def _sources(case=None):
    return [text_of(c) for c in (case or Case()).nb["cells"] if c["cell_type"] == "code"]


COLAB = '''# -*- coding: utf-8 -*-
"""39b.ipynb

Automatically generated by Colab.
"""

# Commented out IPython magic to ensure Python compatibility.
# %matplotlib inline

'''
EXPORTS = {
    "nbconvert": lambda: (
        "#!/usr/bin/env python\n# coding: utf-8\n\n# # Title\n\n"
        + "\n\n".join(
            f"# In[{n or ' '}]:\n\n\nget_ipython().run_line_magic('matplotlib', 'inline')\n{s}"
            for n, s in enumerate(_sources())
        )
    ),
    "percent": lambda: "\n\n".join(
        ["# ---\n# jupyter: {}\n# ---", "# %% [markdown]\n# # Title", *("# %%\n" + s for s in _sources())]
    ),
    "hydrogen": lambda: "\n\n".join("#%% cell\n" + s for s in _sources()),
    "light": lambda: "\n\n".join("# +\n" + s + "\n# -" for s in _sources()),
    "colab": lambda: COLAB + "\n\n".join(_sources()),
    "colab with a cell magic": lambda: (
        COLAB
        + "\n\n".join(
            s
            if "def choose_handoff" not in s
            else COLAB.split('"""\n\n')[1].split("\n")[0]
            + "\n"
            + "\n".join(f"# {line}" for line in f"%%time\n{s}".split("\n"))
            for s in _sources()
        )
    ),
    "no marks": lambda: "\n\n\n".join(_sources()),
    "no marks, sys.exit in between": lambda: "\n\n\n".join(
        [*_sources()[:1], "import sys\nsys.exit()", *_sources()[1:]]
    ),
}


@pytest.fixture(scope="module")
def exports():
    made = [repair(CHAPTER, candidate(make(), "x.py")) for make in EXPORTS.values()]
    return dict(zip(EXPORTS, fractions("39b", [one.cells for one in made]), strict=True))


@pytest.mark.parametrize("name", EXPORTS)
def test_exported_scripts_keep_full_marks(exports, name):
    assert exports[name] == 1


def test_an_exported_script_with_a_broken_function_keeps_the_others():
    text = EXPORTS["no marks"]().replace("    transfer_ms = cache_", "    transfer_ms （= cache_")
    repaired = repair(CHAPTER, candidate(text, "x.py"))
    assert fractions("39b", [repaired.cells]) == [0.75]


# ---- whatever comes

HELPERS = ["EIGHT = 8", "def bits(mb, factor=EIGHT):\n    return mb * factor", "print('hello')", "1 / 0"]


def _base():
    case = Case().insert(T2, *HELPERS).edit(T2, lambda s: s.replace("cache_transfer_mb * 8", "bits(cache_transfer_mb)"))
    return case.nb["cells"]


BASE = _base()


def in_process(cells):
    """Which checks pass: for our own code only."""
    checks, learner, passed = checks_of("39b"), {"__name__": "__main__"}, set()
    with contextlib.redirect_stdout(io.StringIO()):
        for label, source in cells:
            if source:
                exec(source, learner)
                continue
            judge = {"__name__": "__main__"}
            exec(checks["toolkit"], judge)
            judge.update({name: learner[name] for name in checks["functions"] if name in learner})
            with contextlib.suppress(AssertionError, NotImplementedError):
                exec(checks["tests"][label], judge)
                passed.add(label)
    return passed


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_order_any_copies_any_loss_of_metadata_keeps_full_marks(data):
    cells = [copy.deepcopy(cell) for cell in data.draw(st.permutations(BASE))]
    for place in data.draw(st.lists(st.integers(0, len(cells) - 1), max_size=6)):
        cells.append(copy.deepcopy(cells[place]))
    for grade_id in data.draw(st.lists(st.sampled_from([T1, T2, T3, T4]), max_size=3)):
        cells.insert(data.draw(st.integers(0, len(cells))), stub(grade_id))
    for place in data.draw(st.lists(st.integers(0, len(cells) - 1), max_size=20)):
        data.draw(st.sampled_from([_strip, _no_metadata, lambda cell: cell.pop("id", None)]))(cells[place])
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    assert in_process(repair(CHAPTER, candidate(notebook)).cells) == set(checks_of("39b")["tests"])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["code", "def f():", "%%time", T1]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["cells", "cell_type", "source", "input", "metadata", "nbgrader", "grade_id", "id", "worksheets"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(JSON, st.text(max_size=60))
def test_no_structure_breaks_the_repair(content, source):
    notebook = {
        "cells": [
            content,
            {"cell_type": "code", "source": content, "metadata": content},
            {"cell_type": "code", "source": [source], "metadata": {"nbgrader": {"grade_id": T1}}},
        ],
        "metadata": content,
    }
    for one in (notebook, content):
        with contextlib.suppress(reading.Unreadable):
            repaired = repair(CHAPTER, candidate(one))
            assert [label for label, source in repaired.cells if not source][:1] == ["test_classify"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5000), st.integers(0, 200), st.text("(){}[]:'\"\\\n\t # def=%!?xéＡ（", max_size=12))
def test_no_damage_to_the_text_breaks_the_repair(start, length, added):
    text = EXPORTS["percent"]()
    start %= len(text)
    repair(CHAPTER, candidate(text[:start] + added + text[start + length :], "x.py"))


@pytest.mark.parametrize(
    "source",
    [
        "(" * 5000 + ")" * 5000,
        "-" * 5000 + "1",
        "x = " + "1+" * 5000 + "1",
        "a" + ".b" * 3000,
        "x = '\\ud800'",
        "x = 1\0",
        "lambda:" * 900 + "1",
        "1" * 5000,
        "if 1: pass\n" + "elif 1: pass\n" * 500,
        "x=1\n" * 60_000,
        "!ls\n" * 40_000,
        "%%time\n" * 20_000,
        "x=1;" * 40_000,
        "\ufeffx = 1",
        "\x0c",
        "\n".join(" " * n + "if 1:" for n in range(120)),
        "return 1",
        "await x",
        "from x import *",
        "%%",
        "!",
        "?",
        "%%time",
    ],
    ids=range(23),
)
def test_hostile_code_is_read_in_time_and_costs_only_its_own_cell(source):
    notebook = Case().insert(T1, source).set(T1, source).nb
    repaired = repair(CHAPTER, candidate(notebook))
    assert {grade_id for grade_id, _ in repaired.problems} == {T1}
    assert len([source for label, source in repaired.cells if label in (T2, T3, T4)]) == 3


def test_pieces_tell_what_is_read_at_once_from_what_is_read_later():
    piece = pieces.analyse(
        "import a.b as c\nx = c.d\nt[0] = [y for y in z]\ndef f(p=q):\n    return r + p + x\nfor i in s: print(i)"
    )
    assert piece.binds == {"c", "x", "f", "i"}
    assert piece.now == {"t", "z", "q", "s", "print"}
    assert piece.later == {"r", "x"}
    assert piece.changes == {"t"}
    assert pieces.analyse("x = x + 1").now == {"x"} and pieces.analyse("x = 1\nx += 1").now == set()


def test_notes_name_no_note_twice_and_a_broken_file_has_its_reason_everywhere():
    broken = intake.Candidate("x.ipynb", problem="坏了 · broken")
    assert repair(CHAPTER, broken).problems == tuple((grade_id, "坏了 · broken") for grade_id in (T1, T2, T3, T4))
    notes = repair(CHAPTER, candidate(Case().each(_strip).nb)).notes
    assert len(notes) == len(set(notes)) == 1
