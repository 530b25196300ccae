"""Pictures: every request in its class, every corner of the policy map in its colour, no word hidden."""
import enum
import io

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex

from toolkit import pictures
from toolkit.pictures import plot_policy_map, plot_tiers
from toolkit.traces import Trace, synthetic_azure

BLUE, ORANGE, GREEN, VERMILLION, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#aaaaaa"


def classify(request, long_prompt, long_decode):
    prompt, decode = request["prompt_tokens"] > long_prompt, request["decode_tokens"] > long_decode
    return "shared" if prompt == decode else "prefill" if prompt else "decode"


def select_policy(state):
    if state["memory_pressure"] > 0.9:
        return {"policy": "disable_optional_cache"}
    return {"policy": "reduce_batch_size" if state["queue_delay_ms"] > 100 else "keep_current_plan"}


def trace_of(*pairs, name="four"):
    prompt, decode = np.array(pairs).T
    return Trace(name, "made up", np.arange(len(pairs)), prompt, decode)


FOUR = trace_of((3000, 10), (10, 300), (3000, 300), (0, 256))


def classes(figure):
    """{legend text: (number of points, colour, shape)}"""
    return {
        dots.get_label(): (len(dots.get_offsets()), to_hex(dots.get_facecolor()[0]), dots.get_paths()[0])
        for dots in figure.axes[0].collections
    }


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def colour_at(figure, pressure, delay_ms):
    return to_hex(figure.axes[0].images[0].get_array()[int(delay_ms / 2), int(pressure * 100)])


def test_each_request_is_drawn_in_its_class():
    figure = plot_tiers(FOUR, classify, 2048, 256)
    found = classes(figure)
    assert legend(figure) == ["prefill: 25.0% (1)", "decode: 25.0% (1)", "shared: 50.0% (2)"]
    assert [found[text][:2] for text in legend(figure)] == [(1, BLUE), (1, VERMILLION), (2, GREEN)]
    shapes = [found[text][2].vertices.tolist() for text in legend(figure)]
    assert shapes[0] != shapes[1] != shapes[2] != shapes[0]
    # A count of 0 has no place on a logarithmic axis; it must not vanish.
    assert [1, 256] in figure.axes[0].collections[2].get_offsets().tolist()
    assert figure.get_suptitle() == "four: 4 requests\nmade up"


def test_thresholds_are_drawn_where_they_are():
    lines = plot_tiers(FOUR, classify, 1000, 200).axes[0].lines
    assert [line.get_xdata()[0] for line in lines][0] == 1000
    assert [line.get_ydata()[0] for line in lines][1] == 200


def test_both_chapters_words_have_the_same_colours():
    words = {"prefill": "prompt_heavy", "decode": "decode_heavy", "shared": "balanced"}
    found = classes(plot_tiers(FOUR, lambda *given: words[classify(*given)], 2048, 256))
    assert [colour for _, colour, _ in found.values()] == [BLUE, VERMILLION, GREEN]
    assert list(found)[0] == "prompt_heavy: 25.0% (1)"


def test_unknown_words_and_other_values_show_in_the_legend():
    def answer(request, long_prompt, long_decode):
        word = classify(request, long_prompt, long_decode)
        return {"prefill": "Prefill", "decode": None}.get(word, word)

    figure = plot_tiers(FOUR, answer, 2048, 256)
    assert legend(figure) == [
        "shared: 50.0% (2)", "unknown word 'None': 25.0% (1)", "unknown word 'Prefill': 25.0% (1)",
    ]
    assert classes(figure)["unknown word 'Prefill': 25.0% (1)"][1] == GREY


def test_a_str_enum_counts_as_its_text():
    kinds = enum.Enum("Kind", {"SHARED": "shared", "PREFILL": "prefill", "DECODE": "decode"}, type=str)
    figure = plot_tiers(FOUR, lambda *given: kinds(classify(*given)), 2048, 256)
    assert legend(figure)[2] == "shared: 50.0% (2)"


def test_many_words_do_not_flood_the_legend():
    numbers = iter(range(50))
    figure = plot_tiers(synthetic_azure("code", n=50), lambda *_: next(numbers), 2048, 256)
    assert len(legend(figure)) == 4
    assert "other words: 94.0% (47)" in legend(figure)
    assert sum(count for count, *_ in classes(figure).values()) == 50


def test_long_traces_are_thinned_and_the_title_says_so(monkeypatch):
    monkeypatch.setattr(pictures, "MAX_REQUESTS", 100)
    seen = []
    trace = synthetic_azure("conversation", n=1000)
    figure = plot_tiers(trace, lambda request, *_: seen.append(request) or "shared", 2048, 256)
    assert len(seen) == 100 and seen[0] == trace.requests()[0] and seen[-1] == trace.requests()[-1]
    title = figure.get_suptitle()
    assert "100 of 1,000 requests, evenly spaced" in title
    assert "synthetic, fitted to Azure LLM inference trace 2023" in title


def test_policy_map_shows_what_the_function_says_at_the_corners():
    figure = plot_policy_map(select_policy)
    assert colour_at(figure, 0.5, 50) == GREEN
    assert colour_at(figure, 0.5, 150) == ORANGE
    assert colour_at(figure, 0.95, 50) == colour_at(figure, 0.95, 150) == BLUE
    assert colour_at(figure, 0.895, 99) == GREEN and colour_at(figure, 0.905, 99) == BLUE
    assert colour_at(figure, 0.895, 101) == ORANGE
    assert figure.axes[0].images[0].get_extent() == [0, 1, 0, 200]
    assert figure.axes[0].images[0].origin == "lower"
    assert legend(figure) == ["keep_current_plan", "reduce_batch_size", "disable_optional_cache"]
    assert "disable_optional_cache" in figure.axes[0].texts[0].get_text()


def test_policy_map_shows_a_swapped_priority():
    def queue_first(state):
        calm = {**state, "memory_pressure": 0}
        return select_policy(calm if state["queue_delay_ms"] > 100 else state)

    figure = plot_policy_map(queue_first)
    assert colour_at(figure, 0.95, 150) == ORANGE
    assert figure.axes[0].texts[0].get_text().endswith("reduce_batch_size")


def test_policy_map_shows_unknown_words():
    def misspelt(state):
        policy = select_policy(state)["policy"]
        return {"policy": "drop cache" if policy == "disable_optional_cache" else policy}

    figure = plot_policy_map(misspelt)
    assert colour_at(figure, 0.95, 50) == GREY
    assert legend(figure)[-1] == "unknown word 'drop cache'"
    assert figure.legends[0].legend_handles[-1].get_hatch()
    assert figure.axes[0].texts[0].get_text().endswith("drop cache")


@pytest.mark.filterwarnings("error")
def test_words_that_matplotlib_cannot_draw_do_not_warn():
    # A warning on stderr costs a learner the points of a cell.
    for word in ("预填充", "$x$", "_hidden", ""):
        plot_policy_map(lambda state, word=word: {"policy": word}).savefig(io.BytesIO())
        figure = plot_tiers(trace_of((3, 4), name=f"{word}.csv"), lambda *_, word=word: word, 2048, 256)
        figure.savefig(io.BytesIO())
        assert len(legend(figure)) == 1


def test_prints_are_kept_out_and_errors_pass(capsys):
    def noisy(state):
        print("debug")
        return select_policy(state)

    plot_policy_map(noisy)
    assert capsys.readouterr().out == ""
    with pytest.raises(NotImplementedError, match="TODO 2"):
        plot_policy_map(raise_not_done)
    with pytest.raises(NotImplementedError, match="TODO 2"):
        plot_tiers(FOUR, raise_not_done, 2048, 256)


def raise_not_done(*_):
    raise NotImplementedError("TODO 2")


def test_no_figure_stays_open():
    # An open figure is shown by the notebook a second time, below the cell's own result.
    plt.close("all")
    plot_policy_map(select_policy)
    plot_tiers(FOUR, classify, 2048, 256)
    assert plt.get_fignums() == []
