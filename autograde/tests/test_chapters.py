"""Every chapter: its contract, its stubs, its wrong answers and its other right forms."""
import os

import pytest

from autograde import build
from autograde.chapter import load_chapters, nbgrader, tags
from autograde.rehearsal import cells_to_run, rehearse

CHAPTERS = {chapter.name: chapter for chapter in load_chapters()}
ALL_SOLVED = {name: [todo.grade_id for todo in chapter.todos] for name, chapter in CHAPTERS.items()}
CELLS = {  # chapter -> what its solved notebook runs when it is graded
    name: cells_to_run(chapter, solved=ALL_SOLVED[name]) for name, chapter in CHAPTERS.items()
}
VARIANTS = [
    pytest.param(chapter, variant, id=f"{chapter.name[:3]}-{variant.todo}-{variant.name}")
    for chapter in CHAPTERS.values()
    for variant in chapter.variants
]
each_chapter = pytest.mark.parametrize("chapter", CHAPTERS.values(), ids=lambda chapter: chapter.name[:3])


def reference(prefix):
    """The functions of a solved chapter, by name."""
    chapter = next(chapter for name, chapter in CHAPTERS.items() if name.startswith(prefix))
    namespace = {}
    for cell in build.source_notebook(chapter, "en").cells:
        if cell.cell_type == "code" and nbgrader(cell) and not nbgrader(cell)["grade"]:
            exec(cell.source, namespace)
    return namespace


@each_chapter
def test_the_solutions_pass_every_check(chapter):
    assert set(rehearse(CELLS[chapter.name]).values()) == {None}


@each_chapter
@pytest.mark.parametrize("seed", ["1", "2", "3", "20261130"])
def test_the_solutions_pass_whatever_the_seed(chapter, seed, monkeypatch):
    monkeypatch.setitem(os.environ, "COURSE_SEED", seed)
    assert set(rehearse(CELLS[chapter.name]).values()) == {None}


@each_chapter
def test_unfinished_todos_fail_every_check_as_unfinished(chapter):
    for test_id, line in rehearse(cells_to_run(chapter, solved=())).items():
        assert line and line.startswith("NotImplementedError: [T") and "not done yet" in line, (test_id, line)


@each_chapter
def test_one_unfinished_todo_costs_only_its_own_points(chapter):
    for todo in chapter.todos:
        others = [grade_id for grade_id in ALL_SOLVED[chapter.name] if grade_id != todo.grade_id]
        failed = {test_id for test_id, line in rehearse(cells_to_run(chapter, solved=others)).items() if line}
        assert failed == set(todo.tests)


@each_chapter
def test_every_test_cell_stands_alone(chapter):
    given = [cell for cell in CELLS[chapter.name] if not cell[1]]
    for cell in CELLS[chapter.name]:
        if cell[1]:
            assert rehearse([*given, cell]) == {cell[0]: None}


@each_chapter
def test_todos_weigh_the_same(chapter):
    assert len({todo.points for todo in chapter.todos}) == 1
    assert len({todo.tests[f"test_{todo.grade_id}"] for todo in chapter.todos}) == 1


@pytest.mark.parametrize(("chapter", "variant"), VARIANTS)
def test_variant(chapter, variant):
    lines = rehearse(CELLS[chapter.name], override={variant.todo: variant.source})
    failed = {test_id: line for test_id, line in lines.items() if line}
    if variant.kind == "right":
        assert failed == {}
        return
    own = next(todo for todo in chapter.todos if todo.grade_id == variant.todo)
    assert failed, f"no check catches {variant.name}"
    assert set(failed) <= set(own.tests), "another TODO pays for it"
    first = next(iter(failed.values()))
    assert variant.hint in first, f"first line: {first}"
    assert first.startswith(f"AssertionError: [{own.label}] got ")


@each_chapter
def test_every_todo_has_wrong_answers_and_other_right_forms(chapter):
    for todo in chapter.todos:
        kinds = [variant.kind for variant in chapter.variants if variant.todo == todo.grade_id]
        assert kinds.count("wrong") >= 10 and kinds.count("right") >= 4


RECORD = """
_right = {name}
def {name}(*args, **kwargs):
    try:
        recorded[repr((args, kwargs))] = result = _right(*args, **kwargs)
    except ValueError as error:
        recorded[repr((args, kwargs))] = result = error
        raise
    return result
"""
REPLAY = """
def {name}(*args, **kwargs):
    result = recorded[repr((args, kwargs))]
    if isinstance(result, ValueError):
        raise result
    return result
"""


@each_chapter
def test_memorised_answers_to_the_visible_checks_fail_the_hidden_ones(chapter):
    visible = cells_to_run(chapter, solved=ALL_SOLVED[chapter.name], hidden=False)
    for todo in chapter.todos:
        recorded, name = {}, todo.functions[-1]
        rehearse(visible, override={todo.grade_id: RECORD.format(name=name)}, names={"recorded": recorded})
        replay = {todo.grade_id: REPLAY.format(name=name)}
        assert set(rehearse(visible, override=replay, names={"recorded": recorded}).values()) == {None}
        graded = rehearse(CELLS[chapter.name], override=replay, names={"recorded": recorded})
        assert graded[f"test_{todo.grade_id}"], f"a memorised {name} passes"


@each_chapter
def test_field_cases_stand_beside_their_todo(chapter):
    boxes = [c for c in chapter.cells if "en" in tags(c) and "Field case" in c.source and "github.com" in c.source]
    assert len(boxes) >= 3


# The contract of the two chapters, written anew from the chapter texts.

def test_39a_contract():
    f = reference("39a")
    requests = [
        {"prompt_tokens": 4096, "decode_tokens": 32},
        {"prompt_tokens": 2049, "decode_tokens": 256},
        {"prompt_tokens": 64, "decode_tokens": 900},
        {"prompt_tokens": 2048, "decode_tokens": 256},
        {"prompt_tokens": 5000, "decode_tokens": 700},
        {},
    ]
    summary = f["summarize_inference_tiers"](requests, long_prompt_threshold=2048, long_decode_threshold=256)
    assert summary == {"prompt_heavy": 2, "decode_heavy": 1, "balanced": 3}
    assert f["summarize_inference_tiers"]([], 1, 1) == {"prompt_heavy": 0, "decode_heavy": 0, "balanced": 0}

    policy = f["select_fallback_policy"]
    memory = {"policy": "disable_optional_cache", "priority": "protect_residency"}
    queue = {"policy": "reduce_batch_size", "priority": "protect_latency"}
    keep = {"policy": "keep_current_plan", "priority": "stable"}
    assert policy({"memory_pressure": 0.92, "queue_delay_ms": 140}) == memory
    assert policy({"memory_pressure": 0.9, "queue_delay_ms": 101}) == queue
    assert policy({"memory_pressure": 0.9, "queue_delay_ms": 100}) == keep
    assert policy({}) == keep

    outcome = f["evaluate_fallback_outcome"]
    assert outcome(summary, memory) == {
        "risk_level": "memory", "action": "protect_residency", "workload_scope": "mixed"}
    assert outcome({"prompt_heavy": 3, "balanced": 2}, queue) == {
        "risk_level": "latency", "action": "protect_latency", "workload_scope": "single"}
    assert outcome({}, {}) == {
        "risk_level": "stable", "action": "keep_current_plan", "workload_scope": "single"}


REQUEST = {"stage": "decode", "model_revision": "r7", "kv_dtype": "bfloat16", "kv_layout": "paged",
           "required_memory_gb": 12}
POOL = {"pool_id": "d1", "supported_stages": ["decode", "prefill"], "model_revision": "r7", "kv_dtype": "bfloat16",
        "kv_layout": "paged", "available_memory_gb": 12, "healthy": True}


def test_39b_classify_and_handoff_contract():
    f = reference("39b")
    classify, handoff = f["classify_resource_need"], f["choose_handoff_mode"]
    sizes = [(3000, 64), (128, 512), (800, 128), (2048, 256), (2049, 257), (2049, 256), (2048, 257)]
    needs = [classify({"prompt_tokens": p, "decode_tokens": d}, 2048, 256) for p, d in sizes]
    assert needs == ["prefill", "decode", "shared", "shared", "shared", "prefill", "decode"]
    assert handoff(link_gbps=200, cache_transfer_mb=100, recompute_ms=12) == {
        "mode": "transfer", "transfer_ms": 4.0, "recompute_ms": 12}
    assert handoff(link_gbps=25, cache_transfer_mb=100, recompute_ms=12)["mode"] == "recompute"
    assert handoff(50, 100, 16)["mode"] == "transfer", "a tie is a transfer"
    assert handoff(300, 100, 12)["transfer_ms"] == 2.6667
    for bad in [(0, 1, 1), (-1, 1, 1), (1, -1, 1), (1, 1, -1)]:
        with pytest.raises(ValueError):
            handoff(*bad)


def test_39b_capability_contract():
    capability = reference("39b")["evaluate_pool_capability"]
    assert capability(REQUEST, POOL) == {"pool_id": "d1", "can_execute": True, "can_accept_kv": True, "reasons": []}
    layout = capability(REQUEST, {**POOL, "kv_layout": "contiguous"})
    assert layout == {"pool_id": "d1", "can_execute": True, "can_accept_kv": False, "reasons": ["kv_layout_mismatch"]}
    nothing = capability({"model_revision": "r7", "kv_dtype": "fp8"}, {"kv_layout": "paged"})
    assert nothing == {"pool_id": "unknown", "can_execute": False, "can_accept_kv": False, "reasons": [
        "unhealthy", "unsupported_stage", "model_revision_mismatch", "kv_dtype_mismatch", "kv_layout_mismatch"]}
    small = capability(REQUEST, {**POOL, "available_memory_gb": 11.9})
    assert (small["can_execute"], small["reasons"]) == (False, ["insufficient_memory"])


def test_39b_routing_contract():
    f = reference("39b")
    plan = f["plan_route_with_fallback"]
    other_layout = {**POOL, "kv_layout": "contiguous"}
    assert plan(REQUEST, other_layout, [POOL], "transfer") == {
        "selected_pool": "d1", "execution_mode": "recompute", "decision": "primary",
        "reasons": ["kv_layout_mismatch"], "rejected_pools": {}}
    sick = {**POOL, "healthy": False, "kv_dtype": "fp8"}
    assert plan(REQUEST, sick, [{**POOL, "pool_id": "d2"}, {**POOL, "pool_id": "d3"}], "transfer") == {
        "selected_pool": "d2", "execution_mode": "transfer", "decision": "reroute", "reasons": [],
        "rejected_pools": {"d1": ["unhealthy", "kv_dtype_mismatch"]}}
    assert plan(REQUEST, sick, [{**POOL, "available_memory_gb": 2}], "recompute") == {
        "selected_pool": "none", "execution_mode": "none", "decision": "reject",
        "reasons": ["no_executable_pool"], "rejected_pools": {"d1": ["insufficient_memory"]}}
    with pytest.raises(ValueError):
        plan(REQUEST, sick, [], "swap")

    action = f["select_serving_action"]
    assert action(0.92, 20, 80) == {"action": "fallback_to_shared", "protect": "residency"}
    assert action(0.9, 81, 80) == {"action": "route_or_throttle", "protect": "latency"}
    assert action(0.9, 80, 80) == {"action": "keep_heterogeneous_route", "protect": "throughput"}
    route = plan(REQUEST, POOL, [], "transfer")
    assert f["build_route_record"]({"resource_need": "decode"}, route, action(0, 120, 80)) == {
        "resource_need": "decode", "selected_pool": "d1", "execution_mode": "transfer", "route_decision": "primary",
        "service_action": "route_or_throttle", "protect": "latency"}
