"""Panels of requests by class and of the fallback policy, coloured by the learner's own functions."""
from collections import Counter

import numpy as np

from toolkit.panels import (
    Panel,
    PanelPlot,
    Shown,
    panel_answers,
    panel_ascii,
    panel_choice,
    panel_default_style,
    panel_figure,
    panel_lines,
    panel_slider,
    panel_str,
    panel_trouble,
)

TIER_DOTS = 1000  # evenly spaced requests that are drawn; the counts are of all requests
TIER_WORDS = ("prompt_heavy", "decode_heavy", "balanced")
# Okabe and Ito's colours, and never the only difference between two classes.
TIER_STYLES = (("#0072B2", "o"), ("#D55E00", "^"), ("#009E73", "s"))
UNKNOWN_COLOUR = "#767676"
POLICY_COLOURS = {
    "keep_current_plan": "#009E73",
    "reduce_batch_size": "#E69F00",
    "disable_optional_cache": "#0072B2",
}
LONG_PROMPTS = (128, 256, 512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168)
LONG_DECODES = (8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896)
POLICY_HATCHES = {"keep_current_plan": "", "reduce_batch_size": "//", "disable_optional_cache": ".."}


def count_by(classify, words):
    """The count for `tiers_panel` where the learner's function gives one request's class, one of three `words`."""
    def count(requests, long_prompt, long_decode):
        found = [classify(request, long_prompt, long_decode) for request in requests]
        # str() of a str enum gives its name; the word is its text.
        texts = [str.__str__(word) if isinstance(word, str) else repr(word) for word in found]
        return {**dict.fromkeys(words, 0), **Counter(texts)}

    return count


@panel_default_style
def tiers_panel(traces, summarize, words=TIER_WORDS, function="summarize_inference_tiers"):
    """Sliders for the two thresholds over the requests of a trace, each request in its class.

    `traces`: {name: Trace}. `summarize(requests, long_prompt, long_decode)` is the learner's count of
    the classes; a single request's class is the one that it counts for a list of just this request.
    `words`: the three classes. `function`: the name of the learner's function.
    """
    names = list(traces)
    figure = panel_figure(760, 420)
    axes = figure.add_axes((0.09, 0.13, 0.62, 0.76), xscale="log", yscale="log", xlim=(0.9, 2e4), ylim=(0.9, 3e3))
    axes.set(xlabel="prompt tokens", ylabel="generated tokens")
    axes.tick_params(labelsize=9)
    styles = {**dict(zip(words, TIER_STYLES)), "no class": (UNKNOWN_COLOUR, "x")}
    dots, labels = {}, {}
    for row, (word, (colour, marker)) in enumerate(styles.items()):
        dots[word], = axes.plot([], [], linestyle="", marker=marker, color=colour, markersize=4, alpha=0.5)
        at = 0.8 - 0.16 * row
        figure.add_artist(_legend_mark(figure, 0.735, at, colour, marker))
        figure.text(0.755, at + 0.025, word, va="center", fontsize=10)
        labels[word] = figure.text(0.755, at - 0.025, "", va="center", fontsize=10)
    lines = [axes.axvline(1, color="black", linestyle="--"), axes.axhline(1, color="black", linestyle="--")]
    source = figure.text(0.09, 0.915, "", fontsize=10)
    requests = {name: trace.requests() for name, trace in traces.items()}

    def update(values):
        trace, long_prompt, long_decode = traces[values["trace"]], values["long_prompt"], values["long_decode"]
        chosen = np.unique(np.linspace(0, len(trace) - 1, min(len(trace), TIER_DOTS)).astype(int))
        mine = requests[values["trace"]]
        singles, problem = panel_answers(summarize, (([mine[i]], long_prompt, long_decode) for i in chosen))
        classes = [_single_class(counts, words) for counts in singles]
        classes = np.array(classes + ["no class"] * (len(chosen) - len(singles)))
        counts, count_problem = panel_answers(summarize, [(list(mine), long_prompt, long_decode)])
        counts = counts[0] if counts and isinstance(counts[0], dict) else {}
        # Log axes have no 0.
        prompt, decode = np.maximum(trace.prompt_tokens[chosen], 1), np.maximum(trace.decode_tokens[chosen], 1)
        for word in styles:
            dots[word].set_data(prompt[classes == word], decode[classes == word])
        for word in words:
            labels[word].set_text(_share(counts.get(word), len(trace)))
        stray = int((classes == "no class").sum())
        labels["no class"].set_text(f"{stray:,} of the dots")
        lines[0].set_xdata([long_prompt, long_prompt])
        lines[1].set_ydata([long_decode, long_decode])
        source.set_text(f"{trace.name}: {len(trace):,} requests, {len(chosen):,} drawn\n{_short_origin(trace.origin)}")
        place = f"{long_prompt} / {long_decode} tokens"
        problem = problem or count_problem
        if problem:
            return Shown(*panel_trouble(function, problem))
        shares = ", ".join(f"{word} {_share(counts.get(word), len(trace))}" for word in words)
        zh = f"{trace.name}，阈值 {place}：{shares}。"
        en = f"{trace.name}, thresholds {place}: {shares}."
        total = sum(value for value in counts.values() if isinstance(value, int))
        if total != len(trace):
            zh += f"你的函数数出 {total} 个，而记录里有 {len(trace)} 个。"
            en += f" Your function counts {total}, the trace has {len(trace)}."
        if stray:
            zh += f"画出的点里有 {stray} 个没有类。"
            en += f" {stray} of the dots have no class."
        others = ", ".join(panel_str(word)[:30] for word in counts if word not in words)[:90]
        if others:
            zh += f"不在表中的词：{others}。"
            en += f" Words that are not in the table: {others}."
        return Shown(zh, en)

    return Panel(
        "tiers", "阈值怎样分开请求 · How thresholds divide the requests",
        [PanelPlot(figure, [[source], [*dots.values(), *lines, *labels.values()]])], update,
        [[
            [panel_slider("long_prompt", "输入阈值 · prompt", LONG_PROMPTS, 2048, "tokens", "{:,}")],
            [panel_slider("long_decode", "生成阈值 · decode", LONG_DECODES, 256, "tokens", "{:,}"),
             panel_choice("trace", "记录 · trace", [(name, name) for name in names], names[0])],
        ]],
    )


@panel_default_style
def policy_panel(select_policy):
    """A state that moves over the map of the learner's `select_policy(state)["policy"]`.

    Memory pressure goes from 0 to 1 of the memory, queue delay from 0 to 200 ms.
    """
    figure = panel_figure(760, 420)
    axes = figure.add_axes((0.09, 0.13, 0.56, 0.8), xlim=(0, 1), ylim=(0, 200))
    axes.set(xlabel="memory pressure (fraction of memory)", ylabel="queue delay (ms)")
    axes.set(xticks=[0, 0.2, 0.4, 0.6, 0.8, 0.9, 1], yticks=[0, 50, 100, 150, 200])
    # Centres of cells: 0.9 and 100 are edges, so strict and inclusive comparisons look the same.
    pressure, delay = np.meshgrid((np.arange(50) + 0.5) / 50, np.arange(50) * 4.0 + 2)
    states = [
        ({"memory_pressure": p, "queue_delay_ms": q},) for p, q in zip(pressure.ravel().tolist(), delay.ravel().tolist())
    ]
    answers, problem = panel_answers(select_policy, states)
    words = [_policy_word(answer) for answer in answers] + ["no answer"] * (len(states) - len(answers))
    _colour_map(figure, axes, np.array(words).reshape(pressure.shape), pressure, delay)
    axes.axvline(0.9, color="black", linestyle="--", linewidth=1.3)
    axes.axhline(100, color="black", linestyle="--", linewidth=1.3)
    cross, = axes.plot([], [], marker="o", markersize=13, markerfacecolor="white", markeredgecolor="black", mew=2.5)
    answer_label = figure.text(0.675, 0.28, "", fontsize=11, fontweight="bold", va="top")

    def update(values):
        state = {"memory_pressure": values["pressure"], "queue_delay_ms": values["delay"]}
        cross.set_data([values["pressure"]], [values["delay"]])
        found, trouble = panel_answers(select_policy, [(dict(state),)])
        place_zh = f"显存压力 {values['pressure']:.2f}，排队 {values['delay']} ms"
        place_en = f"Memory pressure {values['pressure']:.2f}, queue delay {values['delay']} ms"
        if trouble:
            answer_label.set_text("your function:\nno answer here")
            zh, en = panel_trouble("select_fallback_policy", trouble)
            return Shown(f"{place_zh}：{zh}", f"{place_en}: {en}")
        word = _policy_word(found[0])
        answer_label.set_text(f"your function here:\n{panel_lines(word, 22, 3)}")
        both = values["pressure"] > 0.9 and values["delay"] > 100
        alarms_zh = "两个都告警" if both else "显存告警" if values["pressure"] > 0.9 else (
            "排队告警" if values["delay"] > 100 else "没有告警")
        alarms_en = "both alarm" if both else "memory alarms" if values["pressure"] > 0.9 else (
            "the queue alarms" if values["delay"] > 100 else "no alarm")
        return Shown(
            f"{place_zh}（{alarms_zh}）：你的函数选择 {word}。",
            f"{place_en} ({alarms_en}): your function chooses {word}.",
        )

    return Panel(
        "policy", "状态在策略地图上移动 · A state moves over the map of the policy",
        [PanelPlot(figure, [[answer_label], [cross]])], update,
        [[
            [panel_slider("pressure", "显存压力 · memory pressure", [i / 100 for i in range(101)], 0.85, "", "{:.2f}")],
            [panel_slider("delay", "排队 · queue delay", range(0, 201, 5), 60, "ms")],
        ]],
    )


def _legend_mark(figure, x, y, colour, marker):
    from matplotlib.lines import Line2D

    return Line2D([x], [y], marker=marker, color=colour, linestyle="", markersize=8, transform=figure.transFigure)


def _colour_map(figure, axes, words, pressure, delay):
    """Colour the map by word, with a hatch as second cue, and a legend beside it."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    colours = np.zeros((*words.shape, 3))
    found = [word for word in POLICY_COLOURS if word in words]
    found += sorted(set(words.ravel().tolist()) - set(POLICY_COLOURS))
    patches = []
    for word in found:
        colour, hatch = POLICY_COLOURS.get(word, UNKNOWN_COLOUR), POLICY_HATCHES.get(word, "xx")
        colours[words == word] = to_rgb(colour)
        patches.append(Patch(facecolor=colour, edgecolor="white", hatch=hatch, label=panel_lines(word, 22, 2)))
        if hatch:
            drawn = axes.contourf(pressure, delay, words == word, levels=[0.5, 1.5], colors="none", hatches=[hatch])
            drawn.set(edgecolor="white", linewidth=0)
    axes.imshow(colours, origin="lower", extent=(0, 1, 0, 200), aspect="auto", interpolation="nearest")
    figure.legend(
        handles=patches[:6], loc="upper left", bbox_to_anchor=(0.66, 0.95), frameon=False, handlelength=2.5,
        handleheight=2, title="your function's answer",
    )


def _policy_word(answer):
    word = answer.get("policy") if isinstance(answer, dict) else answer
    return str.__str__(word) if isinstance(word, str) else f"no word: {panel_str(word)}"[:40]


def _single_class(counts, words):
    """The class of one request from its counts; "no class" unless just one known class has just 1."""
    if not isinstance(counts, dict):
        return "no class"
    found = [word for word, count in counts.items() if count]
    return str.__str__(found[0]) if len(found) == 1 and found[0] in words and counts[found[0]] == 1 else "no class"


def _share(count, total):
    if isinstance(count, bool) or not isinstance(count, int):
        return "no count" if count is None else panel_str(count)[:20]
    if abs(count) > 1e12:  # more than any trace has, and perhaps more than a float can be
        return f"{panel_str(count)[:17]}..."
    return f"{count:,} ({count / total:.1%})"


def _short_origin(origin):
    return panel_ascii(origin)[:90]
