"""Panels: a moved slider changes picture and line, the widgets stay, and every curve says where it comes from."""
import enum
import io
import itertools
import sys

import matplotlib
import matplotlib.style
import numpy as np
import pytest

from toolkit import panels
from toolkit.costs import Recompute, Transfer
from toolkit.crossover_panels import (
    MEASURED,
    RECORDED,
    SIMULATED,
    Source,
    TransferPath,
    crossover_panel,
    decision_map_panel,
    destinations_panel,
    link_values,
    token_values,
)
from toolkit.tier_panels import count_by, policy_panel, tiers_panel
from toolkit.traces import synthetic_azure

TRACES = {kind: synthetic_azure(kind, n=300) for kind in ("code", "conversation")}
HUMP = Recompute(1.0, 0.0, 1e-5, 1250)  # 1 + 1e-5·n² ms; moving takes 0.01·n ms at 1 Gbps


def unfinished(*_):
    raise NotImplementedError("TODO")


def broken(*_):
    raise KeyError("prompt")


class Hostile(Exception):
    """Neither its text nor its repr can be had."""

    def __str__(self):
        raise RuntimeError

    __repr__ = __str__


def unreadable(*_):
    raise Hostile


def leaving(*_):
    sys.exit("bye")


def odd(*_):
    return {"mode": "transfer", "transfer_ms": 10**400, "policy": Hostile(), "prompt_heavy": 10**400,
            "can_execute": True, "reasons": [Hostile()], "selected_pool": Hostile(), "decision": Hostile(),
            "rejected_pools": 3}


def long_winded(*_):
    raise ValueError("no pool · 没有资源池 " * 40)


def handoff(link_gbps, mb, recompute_ms, factor=8.0):
    ms = mb * factor / link_gbps
    return {"mode": "transfer" if ms <= recompute_ms else "recompute", "transfer_ms": round(ms, 4)}


def capability(request, pool):
    reasons = [] if pool["healthy"] else ["unhealthy"]
    if pool["available_memory_gb"] < request["required_memory_gb"]:
        reasons.append("insufficient_memory")
    kv = [f"{name}_mismatch" for name in ("kv_dtype", "kv_layout") if pool[name] != request[name]]
    return {"can_execute": not reasons, "can_accept_kv": not reasons + kv, "reasons": reasons + kv}


def route(request, primary, fallbacks, preferred):
    rejected = {}
    for position, pool in enumerate([primary, *fallbacks]):
        found = capability(request, pool)
        if found["can_execute"]:
            mode = preferred if found["can_accept_kv"] else "recompute"
            return {"selected_pool": pool["pool_id"], "execution_mode": mode, "reasons": found["reasons"],
                    "decision": "reroute" if position else "primary", "rejected_pools": rejected}
        rejected[pool["pool_id"]] = found["reasons"]
    return {"selected_pool": "none", "execution_mode": "none", "decision": "reject",
            "reasons": ["no_executable_pool"], "rejected_pools": rejected}


def summarize(requests, long_prompt, long_decode):
    counts = {"prompt_heavy": 0, "decode_heavy": 0, "balanced": 0}
    for request in requests:
        prompt, decode = request["prompt_tokens"] > long_prompt, request["decode_tokens"] > long_decode
        counts["balanced" if prompt == decode else "prompt_heavy" if prompt else "decode_heavy"] += 1
    return counts


def policy(state):
    if state["memory_pressure"] > 0.9:
        return {"policy": "disable_optional_cache"}
    return {"policy": "reduce_batch_size" if state["queue_delay_ms"] > 100 else "keep_current_plan"}


MOVES = {
    "crossover": (crossover_panel, {"cpu_link": 0.03}),
    "decisions": (lambda: decision_map_panel(handoff), {"link": 200}),
    "destinations": (lambda: destinations_panel(capability, route), {"healthy_A": True}),
    "tiers": (lambda: tiers_panel(TRACES, summarize), {"long_prompt": 512}),
    "policy": (lambda: policy_panel(policy), {"pressure": 0.95}),
}
UNFINISHED = {
    "decisions": lambda answer: decision_map_panel(answer),
    "destinations": lambda answer: destinations_panel(answer, answer),
    "tiers": lambda answer: tiers_panel(TRACES, answer),
    "policy": lambda answer: policy_panel(answer),
}


def pixels(png):
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)))


def texts(panel):
    figures = [plot.figure for plot in panel._plots]
    return [text.get_text() for figure in figures for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def axes(panel):
    return panel._plots[0].figure.axes[0]


def shown(panel, monkeypatch):
    """The mime bundles that a cell's last expression would publish."""
    bundles = []
    monkeypatch.setattr("IPython.display.display", lambda data, **_: bundles.append(data))
    panel._ipython_display_()
    return bundles


@pytest.mark.parametrize("name", MOVES)
def test_a_moved_slider_changes_picture_and_line_but_not_the_widgets(name):
    make, move = MOVES[name]
    panel = make()
    pictures, line = list(panel.pictures), panel._line
    values, text, html = [picture.value for picture in pictures], panel.text, panel._line.value
    sizes, whole = [pixels(png).shape for png in values], panel.png
    panel.move(**move)
    assert panel.pictures == pictures and panel._line is line
    assert [pixels(picture.value).shape for picture in pictures] == sizes
    # Only the plot that the slider moves is sent again.
    assert [picture.value != png for picture, png in zip(pictures, values)] == [True, False][:len(pictures)]
    assert panel.png != whole and panel.text != text and panel._line.value != html
    back = {key: knob for key, knob in make().values.items() if key in move}
    panel.move(**back)
    # Nothing of the way there stays behind.
    assert [picture.value for picture in pictures] == values and panel.text == text


def test_another_link_draws_nothing_again_that_it_leaves_alone(monkeypatch):
    panel, drawn = crossover_panel(), []
    draw = matplotlib.text.Text.draw
    monkeypatch.setattr(matplotlib.text.Text, "draw", lambda text, renderer: (
        drawn.append(text.get_text()), draw(text, renderer)))
    panel.move(cpu_link=0.03)
    assert drawn == ["link 0.03 Gbps: recompute"]
    panel.move(cuda_tokens=8192)
    assert [text.split(" ")[0] for text in drawn[1:]] == ["B*(8,192)", "link"]


@pytest.mark.parametrize("name", MOVES)
def test_blitting_draws_what_a_whole_new_picture_would(name):
    make, move = MOVES[name]
    panel = make()
    panel.move(**move)
    blitted = pixels(panel.png)
    for plot in panel._plots:
        for artist in (artist for layer in plot.layers for artist in layer):
            artist.set_animated(False)
        plot.figure.canvas.draw()
    whole = pixels(panel.png).astype(int)
    # Only the order of overlapping parts may differ: frame, grid and ticks lie in the background.
    assert (np.abs(whole - blitted).max(axis=2) > 60).mean() < 0.01


@pytest.mark.parametrize("name", MOVES)
def test_each_control_has_a_label_and_only_core_widgets_are_used(name):
    panel = MOVES[name][0]()
    assert set(panel.controls) == set(panel.values)
    for control in panel.controls.values():
        assert control.description and type(control).__module__.startswith("ipywidgets.widgets.")
    for picture in panel.pictures:
        assert (picture.layout.width, picture.layout.height) == (f"{picture.width}px", f"{picture.height}px")


def test_a_panel_shows_one_widget_view_with_a_still_picture_for_readers_without_a_kernel(monkeypatch):
    panel = crossover_panel()
    view, line = shown(panel, monkeypatch)
    assert view[panels.VIEW_TYPE]["model_id"] == panel.box.model_id
    assert view["image/png"].startswith("iVBOR") and "crossing" in line["text/plain"]
    # The live heading hides the still line, by its class.
    assert "panel-still-crossover" in line["text/html"]
    assert ".panel-still-crossover{display:none}" in panel.box.children[0].value


@pytest.mark.parametrize("name", MOVES)
def test_without_ipywidgets_the_same_picture_and_how_to_get_sliders(name, monkeypatch):
    make, move = MOVES[name]
    live = make()
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    still = make()
    assert still.png == live.png and still.text == live.text and still.box is None
    view, line = shown(still, monkeypatch)
    assert panels.VIEW_TYPE not in view and view["image/png"]
    assert "%pip install ipywidgets" in line["text/plain"] and "%pip install ipywidgets" in line["text/html"]
    still.move(**move)
    assert still.png != live.png


@pytest.mark.parametrize("name", UNFINISHED)
def test_an_unfinished_function_is_said_and_the_panel_stays_usable(name):
    panel = UNFINISHED[name](unfinished)
    assert "is not done yet" in panel.shown.en and "尚未完成" in panel.shown.zh
    assert "slider" not in panel.shown.en and "滑块" not in panel.shown.zh  # without ipywidgets there are none
    png = panel.png
    panel.move(**({"link": 200} if name == "destinations" else MOVES[name][1]))
    assert panel.png != png and "is not done yet" in panel.shown.en


@pytest.mark.parametrize("name", UNFINISHED)
def test_a_function_that_raises_is_named_with_its_error(name):
    assert "raises KeyError: 'prompt'" in UNFINISHED[name](broken).shown.en


@pytest.mark.parametrize("answer", [None, 7, "transfer", [], {}, {"mode": 1, "policy": 2, "reasons": 3}])
@pytest.mark.parametrize("name", UNFINISHED)
def test_answers_of_a_wrong_kind_stop_no_panel(name, answer):
    panel = UNFINISHED[name](lambda *_: answer)
    panel.move(**MOVES[name][1])
    assert panel.text


def test_what_a_function_prints_stays_off_the_page(capsys):
    def chatty(*given):
        print("here")
        return handoff(*given)
    decision_map_panel(chatty).move(link=100)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("link, en, zh", [
    # 1e-5·n² - 0.02·n + 1 = 0 at 51.3 and 1948.7; at 0.02 Gbps the roots are 2 and 49998, at 2 Gbps there are none.
    (0.5, "2 crossings at 51 and 1,949 tokens", "交叉点 2 个：51、1,949 token"),
    (0.02, "no crossing, recompute is always faster", "没有交叉点，重算总是更快"),
    (2, "no crossing, transfer is always faster", "没有交叉点，传输总是更快"),
])
def test_two_crossings_or_none(link, en, zh):
    panel = crossover_panel(cpu=[Source("made up", MEASURED, HUMP)])
    panel.move(cpu_link=link)
    assert en in panel.shown.en and zh in panel.shown.zh


def test_one_crossing_is_marked_where_it_is():
    # 0.01·n + 1e-5·n² meets 0.02·n (1,250 bytes a token at 0.5 Gbps) at n = 1000 only.
    panel = crossover_panel(cpu=[Source("made up", MEASURED, Recompute(0.0, 0.01, 1e-5, 1250))])
    panel.move(cpu_link=0.5)
    assert "1 crossing at 1,000 tokens" in panel.shown.en and "交叉点 1 个：1,000" in panel.shown.zh
    diamonds = [line for line in axes(panel).lines if line.get_marker() == "D"]
    assert diamonds[0].get_xdata() == pytest.approx([1000], rel=1e-3)
    assert diamonds[0].get_ydata() == pytest.approx([20], rel=1e-3)


def test_every_curve_says_where_it_comes_from():
    panel = crossover_panel()
    labels = texts(panel)
    assert "recompute: recorded, two x86-64 cores; points and fit" in labels
    assert "recompute: computed from published numbers, MFU 0.45" in labels
    assert labels.count("transfer: computed, MB x 8 / Gbps") == 2
    assert "no recorded GPU profile is shipped" in panel.shown.en and "没有附带" in panel.shown.zh
    shared = TransferPath("shared memory", MEASURED, Transfer(0.1, 0.001))
    paced = TransferPath("paced", SIMULATED, Transfer(1.0, 1.0))
    here = Source("tiny", MEASURED, HUMP, tokens=(64, 4096), ms=(1.0, 169.0), paths=(shared, paced))
    panel = crossover_panel(cpu=[here], cuda=[here._replace(provenance=RECORDED, origin="H200")])
    panel.move(cpu_path="shared memory", cuda_path="paced")
    labels = texts(panel)
    assert "recompute: measured here; points and fit" in labels and "transfer: measured here" in labels
    assert "recompute: recorded, H200; points and fit" in labels and "transfer: simulated" in labels
    assert "no recorded GPU profile" not in panel.shown.en


def assert_texts_inside(panel):
    for plot in panel._plots:
        for text in filter(matplotlib.text.Text.get_text, plot.figure.findobj(matplotlib.text.Text)):
            box = text.get_window_extent()
            if "mathdefault" not in text.get_text():  # ticks beyond the end of an axis have a place, but are not drawn
                assert box.x0 >= 0 and box.x1 <= plot.figure.bbox.width, text.get_text()


def test_no_text_leaves_its_plot():
    panel = crossover_panel()
    choices = [[value for _, value in panel.controls[name].options] for name in ("model", "cuda_place")]
    for model, place in itertools.product(*choices):
        panel.move(model=model, cuda_place=place)
        assert_texts_inside(panel)


EVERY_REASON = ["unhealthy", "unsupported_stage", "model_revision_mismatch", "insufficient_memory", "kv_dtype_mismatch",
                "kv_layout_mismatch"]


@pytest.mark.parametrize("answer", [capability, lambda request, pool: {"can_execute": False, "reasons": EVERY_REASON}])
def test_the_reasons_of_three_pools_stand_one_a_line_inside_the_plot(answer, monkeypatch):
    monkeypatch.setitem(globals(), "capability", answer)  # the route asks it too
    panel = destinations_panel(answer, route)
    for state in itertools.product((True, False), (24, 0), ("bfloat16", "float8"), ("paged-v1", "contiguous")):
        knobs = dict(zip(("healthy", "free", "dtype", "layout"), state))
        panel.move(**{f"{name}_{pool}": value for pool in "ABC" for name, value in knobs.items()})
        assert_texts_inside(panel)
        verdicts = panel._plots[0].layers[0]
        reasons = panel.shown.table[1][6]
        assert verdicts[0].get_text().split("\n")[1:] == ([] if reasons == "-" else reasons.split(", "))
        boxes = [verdict.get_window_extent() for verdict in verdicts]
        assert boxes[0].y1 <= 330 and boxes[0].y0 >= boxes[1].y1 and boxes[1].y0 >= boxes[2].y1 and boxes[2].y0 >= 0


def test_unverified_figures_are_marked():
    panel = crossover_panel()
    h20 = [value for text, value in panel.controls["cuda_place"].options if text.startswith("H20 ")][0]
    panel.move(cuda_place=h20)
    assert "H20 (unverified)" in panel.shown.en
    assert any("CUDA tensor: Llama-3.1-8B, H20 (unverified)" in text for text in texts(panel))


def test_a_fit_is_not_drawn_beyond_its_points():
    panel = crossover_panel(cpu=[Source("tiny", MEASURED, HUMP, tokens=(64, 2048), ms=(1.0, 43.0))])
    panel.move(cpu_tokens=4096)
    curve = axes(panel).lines[1].get_xdata()
    assert (curve.min(), curve.max()) == pytest.approx((64, 2048))
    assert "extrapolated" in panel.shown.en


def test_the_map_agrees_with_a_right_function_and_shows_a_wrong_unit():
    right = decision_map_panel(handoff)
    assert "transfer_ms: right; 0% of the map disagrees" in right.shown.en
    bytes_not_bits = decision_map_panel(lambda *given: handoff(*given, factor=1))
    assert "0.125 x the true one" in bytes_not_bits.shown.en
    image, wrong = (axes(panel).images[0].get_array() for panel in (right, bytes_not_bits))
    moved = (np.abs(image - wrong).max(axis=2) > 0).sum(axis=1)
    # A factor of 8 is 0.9 of the 4 decades: 14 or 15 of the 64 cells in each row.
    assert set(moved.tolist()) <= {14, 15}


def test_the_map_is_coloured_again_only_for_another_model_or_gpu():
    calls = []

    def counted(*given):
        calls.append(given)
        return handoff(*given)
    panel = decision_map_panel(counted)
    calls.clear()
    panel.move(link=100)
    assert len(calls) == 1
    panel.move(gpu="T4")
    assert len(calls) == 64 * 40 + 2  # the map, and the point both times


def test_destinations_follow_health_memory_and_format():
    panel = destinations_panel(capability, route)
    assert "reroute, pool-B, recompute; reasons: kv_layout_mismatch; refused: pool-A: unhealthy." in panel.shown.en
    panel.move(layout_B="paged-v1", link=400)
    assert "reroute, pool-B, transfer; reasons: none" in panel.shown.en
    panel.move(healthy_A=True)
    assert "primary, pool-A, transfer; reasons: none; refused: none" in panel.shown.en
    panel.move(dtype_A="float8")
    assert "primary, pool-A, recompute; reasons: kv_dtype_mismatch" in panel.shown.en
    panel.move(free_A=0, free_B=0, free_C=0)
    assert "reject, none, none; reasons: no_executable_pool" in panel.shown.en
    header, first, *_ = panel.shown.table
    assert len(header) == len(first) and first[0] == "pool-A" and "insufficient_memory" in first[6]


def test_the_learners_functions_get_copies():
    def greedy(request, *pools):
        request.clear()
        for pool in pools[:1]:
            pool.clear()
        return {"can_execute": True, "can_accept_kv": True, "reasons": []}
    assert destinations_panel(greedy, route).shown.en == destinations_panel(capability, route).shown.en


def test_tiers_are_counted_over_all_requests_and_drawn_in_their_class():
    trace = TRACES["code"]
    panel = tiers_panel(TRACES, summarize)
    counts = summarize(trace.requests(), 2048, 256)
    for word, count in counts.items():
        assert f"{word} {count:,} ({count / 300:.1%})" in panel.shown.en
    drawn = [line for line in axes(panel).lines if line.get_marker() in ("o", "^", "s")]
    assert [len(line.get_xdata()) for line in drawn] == list(counts.values())
    lost = tiers_panel(TRACES, lambda requests, *limits: summarize(requests[1:], *limits))
    assert "Your function counts 299, the trace has 300." in lost.shown.en


def test_a_classifier_is_counted_by_its_words_and_strange_words_are_named():
    needs = ("prefill", "decode", "shared")
    kinds = enum.Enum("Kind", {"PREFILL": "prefill", "DECODE": "decode", "SHARED": "shared"}, type=str)

    def classify(request, long_prompt, long_decode):
        prompt, decode = request["prompt_tokens"] > long_prompt, request["decode_tokens"] > long_decode
        return kinds["SHARED" if prompt == decode else "PREFILL" if prompt else "DECODE"]

    panel = tiers_panel(TRACES, count_by(classify, needs), needs, "classify_resource_need")
    counts = summarize(TRACES["code"].requests(), 2048, 256)
    for word, count in zip(needs, counts.values()):
        assert f"{word} {count:,} ({count / 300:.1%})" in panel.shown.en
    assert "no class" not in panel.shown.en and "Words" not in panel.shown.en
    strange = tiers_panel(TRACES, count_by(lambda *_: "预填充", needs), needs, "classify_resource_need")
    assert "300 of the dots have no class. Words that are not in the table: 预填充." in strange.shown.en
    unknown = tiers_panel(TRACES, count_by(unfinished, needs), needs, "classify_resource_need")
    assert "classify_resource_need is not done yet" in unknown.shown.en


@pytest.mark.filterwarnings("error")
def test_words_that_matplotlib_cannot_draw_do_not_warn():
    # A warning on stderr costs a learner the points of a cell.
    for word in ("预填充", "$x$", "_hidden", ""):
        policy_panel(lambda state, word=word: {"policy": word}).move(pressure=0.95)


def test_a_path_can_be_chosen_only_where_one_was_measured():
    shared = TransferPath("shared memory", MEASURED, Transfer(0.1, 0.001))
    panel = crossover_panel(cpu=[Source("tiny", MEASURED, HUMP, paths=(shared,))])
    assert "cuda_path" not in panel.controls and panel.controls["cpu_path"].index == 0  # not blank
    panel.move(cpu_path="shared memory")
    assert "shared memory (transfer: measured here)" in panel.shown.en


def test_the_first_link_shown_crosses_a_measured_hump_twice():
    tokens = (64, 256, 1024, 4096)
    # Top of the hump at n = 316; between its height and B* at the ends lies the link.
    recompute = Recompute(2.0, 0.05, 2e-5, 8192)
    ms = tuple(map(recompute.ms, tokens))
    panel = crossover_panel(cpu=[Source("tiny", MEASURED, recompute, tokens=tokens, ms=ms)])
    assert recompute.crossing_gbps(64) < panel.values["cpu_link"] < recompute.peak.gbps
    assert "2 crossings" in panel.shown.en.split("CUDA")[0]


def test_the_state_on_the_policy_map_is_exact_at_the_triggers():
    panel = policy_panel(policy)
    panel.move(pressure=0.9, delay=100)
    assert "(no alarm): your function chooses keep_current_plan" in panel.shown.en
    panel.move(pressure=0.91, delay=105)
    assert "(both alarm): your function chooses disable_optional_cache" in panel.shown.en


def test_slider_values_are_round_and_stay_in_range():
    links = link_values(0.02, 2)
    assert links[0] == 0.02 and links[-1] == 2 and links == sorted(set(links)) and 0.25 in links
    assert token_values(32, 128) == [32, 40, 48, 56, 64, 80, 96, 112, 128]


def test_an_unknown_control_is_refused_by_name():
    with pytest.raises(KeyError, match="no control 'speed', only cpu_link"):
        crossover_panel().move(speed=1)


def test_an_unfinished_pool_check_is_said_in_both_languages_in_the_table_and_in_english_in_the_figure():
    panel = destinations_panel(unfinished, route)
    assert {row[6] for row in panel.shown.table[1:]} == {"not done yet · 尚未完成"}
    assert "not done yet" in " ".join(texts(panel)) and all(text.isascii() for text in texts(panel))


@pytest.mark.parametrize("answer", [unreadable, leaving, odd, long_winded, unfinished, broken])
@pytest.mark.parametrize("name", UNFINISHED)
def test_nothing_that_a_learner_may_return_or_raise_leaves_a_panel(name, answer):
    panel = UNFINISHED[name](answer)
    for key, knob in {key: control.options[-1] for key, control in panel.controls.items()
                      if hasattr(control, "options")}.items():
        panel.move(**{key: knob[1]})
    assert panel.shown.zh and panel.shown.en
    if answer is leaving:
        assert "SystemExit" in panel.shown.en
    assert_texts_inside(panel)


def test_a_slow_or_talkative_function_does_not_hold_or_fill_the_page(monkeypatch, capsys):
    now = iter(range(10_000))
    monkeypatch.setattr(panels.time, "monotonic", lambda: next(now))  # a second a call

    def talkative(state):
        print("a line", file=sys.stderr)
        return policy(state)

    panel = policy_panel(talkative)
    assert "no answer" in texts(panel) and capsys.readouterr() == ("", "")
    answers, problem = panels.panel_answers(talkative, [(state,) for state in [{"memory_pressure": 1.0}] * 9])
    assert problem == "slow" and len(answers) == 2
    assert "too slow" in panels.panel_trouble("f", problem)[1]


@pytest.mark.parametrize("name", MOVES)
def test_a_panel_looks_the_same_in_the_learners_own_style(name):
    make, move = MOVES[name]
    plain = make()
    with matplotlib.style.context(["dark_background", {"font.size": 24, "axes.grid": True, "lines.linewidth": 9}]):
        mine = make()
        assert mine.png == plain.png
        mine.move(**move)
    plain.move(**move)
    assert mine.png == plain.png
