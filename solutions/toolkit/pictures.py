"""Pictures of what the learner's own functions decide.

Text inside figures is English: matplotlib's fonts draw Chinese as boxes. The colours are Okabe and
Ito's, and never the only difference between two classes.
"""
import contextlib
import io
from collections import Counter

import numpy as np

MAX_REQUESTS = 20_000  # a scatter of more takes long and shows no more
OTHER_WORDS = "other words"
TIER_STYLES = {  # word -> (colour, marker); the words of chapter 39a, then those of 39b
    "prompt_heavy": ("#0072B2", "o"),
    "decode_heavy": ("#D55E00", "^"),
    "balanced": ("#009E73", "s"),
    "prefill": ("#0072B2", "o"),
    "decode": ("#D55E00", "^"),
    "shared": ("#009E73", "s"),
}
POLICY_COLOURS = {
    "keep_current_plan": "#009E73",
    "reduce_batch_size": "#E69F00",
    "disable_optional_cache": "#0072B2",
}
UNKNOWN_COLOUR = "#AAAAAA"


def plot_tiers(trace, classify, long_prompt_threshold, long_decode_threshold):
    """Scatter of prompt against generated tokens, each request in the class that `classify` gives it.

    Calls `classify(request, long_prompt_threshold, long_decode_threshold)`, a word, for every
    request of `trace` (for MAX_REQUESTS evenly spaced ones of a longer trace; the title says so).
    Words that no chapter knows are drawn grey. Counts of 0 are drawn at 1: the axes are logarithmic.
    Returns the Figure: make it a cell's last expression, or `display` it. What `classify` raises, passes.
    """
    chosen = np.unique(np.linspace(0, len(trace) - 1, min(len(trace), MAX_REQUESTS)).astype(int))
    requests = trace.requests()
    words = _answers(
        lambda request: classify(request, long_prompt_threshold, long_decode_threshold),
        [requests[i] for i in chosen],
        TIER_STYLES,
    )
    figure, axes = _new_figure()
    prompt = np.maximum(trace.prompt_tokens[chosen], 1)
    decode = np.maximum(trace.decode_tokens[chosen], 1)
    for word in _in_order(words, TIER_STYLES):
        colour, marker = TIER_STYLES.get(word, (UNKNOWN_COLOUR, "x"))
        mine = words == word
        edge = {} if marker == "x" else {"edgecolors": "none"}
        axes.scatter(
            prompt[mine], decode[mine], s=14, c=colour, marker=marker, alpha=0.4, **edge,
            label=f"{_legend_word(word, TIER_STYLES)}: {mine.mean():.1%} ({mine.sum():,})",
        )
    axes.set(xscale="log", yscale="log", xlabel="prompt tokens", ylabel="generated tokens")
    axes.axvline(long_prompt_threshold, color="black", linestyle="--", linewidth=1.3)
    axes.axhline(long_decode_threshold, color="black", linestyle="--", linewidth=1.3)
    along_x, along_y = axes.get_xaxis_transform(), axes.get_yaxis_transform()
    axes.text(long_prompt_threshold, 1.01, f"{long_prompt_threshold:,}", transform=along_x, ha="center")
    axes.text(1.01, long_decode_threshold, f"{long_decode_threshold:,}", transform=along_y, va="center")
    shown = f"{len(chosen):,} requests"
    if len(chosen) < len(trace):
        shown = f"{len(chosen):,} of {len(trace):,} requests, evenly spaced"
    figure.suptitle(f"{_drawable(trace.name)}: {shown}\n{_drawable(trace.origin)}", fontsize=10)
    _legend_below(figure, axes)
    return figure


def plot_policy_map(select_policy):
    """Map of `select_policy(state)["policy"]` over memory pressure (0 to 1) and queue delay (0 to 200 ms).

    The dashed lines are the chapter's triggers, 0.9 and 100 ms; the arrow shows the answer where both
    hold. Unknown words are hatched grey. Returns the Figure; what `select_policy` raises, passes.
    """
    # Centres of cells: 0.9 and 100 are edges, so strict and inclusive comparisons look the same.
    pressure, delay = np.meshgrid((np.arange(100) + 0.5) / 100, np.arange(100) * 2.0 + 1)
    states = [
        {"memory_pressure": p, "queue_delay_ms": q}
        for p, q in zip(pressure.ravel().tolist(), delay.ravel().tolist(), strict=True)
    ]
    words = _answers(lambda state: select_policy(state)["policy"], states, POLICY_COLOURS)
    words = words.reshape(pressure.shape)
    figure, axes = _new_figure()
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    colours = np.zeros((*words.shape, 3))
    patches = []
    hatches = iter(["//", "..", "xx", "--"])
    for word in _in_order(words, POLICY_COLOURS):
        colour = POLICY_COLOURS.get(word, UNKNOWN_COLOUR)
        hatch = None if word in POLICY_COLOURS else next(hatches)
        colours[words == word] = to_rgb(colour)
        patches.append(Patch(facecolor=colour, hatch=hatch, label=_legend_word(word, POLICY_COLOURS)))
        if hatch:
            axes.contourf(pressure, delay, words == word, levels=[0.5, 1.5], colors="none", hatches=[hatch])
    axes.imshow(colours, origin="lower", extent=(0, 1, 0, 200), aspect="auto", interpolation="nearest")
    axes.axvline(0.9, color="black", linestyle="--", linewidth=1.3)
    axes.axhline(100, color="black", linestyle="--", linewidth=1.3)
    both = words[(pressure > 0.9) & (delay > 100)]
    answers = " or ".join(_drawable(word)[:30] for word in _in_order(both, POLICY_COLOURS))
    axes.annotate(
        f"both triggers hold here:\n{answers}", xy=(0.95, 150), xytext=(0.5, 150), ha="center", va="center",
        bbox={"boxstyle": "round", "facecolor": "white"}, arrowprops={"arrowstyle": "->", "linewidth": 1.5},
    )
    axes.set(
        xlabel="memory pressure (fraction of memory)", ylabel="queue delay (ms)",
        xticks=[0, 0.2, 0.4, 0.6, 0.8, 0.9, 1], yticks=[0, 50, 100, 150, 200],
    )
    figure.suptitle("Policy chosen by your function", fontsize=10)
    _legend_below(figure, axes, patches)
    return figure


def _new_figure():
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), dpi=100, layout="constrained")
    plt.close(figure)  # else a notebook shows it twice: as open figure and as the cell's result
    return figure, axes


def _legend_below(figure, axes, handles=None):
    handles = handles or axes.get_legend_handles_labels()[0]
    columns = 3 if len(handles) <= 3 and not any("unknown" in h.get_label() for h in handles) else 2
    legend = figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    for handle in legend.legend_handles:
        handle.set_alpha(1)


def _answers(function, inputs, known):
    """Array of the words that `function` returns; the rarer unknown ones become OTHER_WORDS."""
    with contextlib.redirect_stdout(io.StringIO()):  # a print left in the function would fill the page
        words = [function(one) for one in inputs]
    # str() of a str enum gives its name; the word is its text.
    words = [str.__str__(word) if isinstance(word, str) else str(word) for word in words]
    unknown = Counter(word for word in words if word not in known)
    kept = {*known, *(word for word, _ in unknown.most_common(3))}
    return np.array([word if word in kept else OTHER_WORDS for word in words])


def _in_order(words, known):
    """The distinct words: the known ones in the order of `known`, then the others."""
    found = set(words.ravel().tolist())
    return [word for word in known if word in found] + sorted(found - set(known))


def _legend_word(word, known):
    return word if word in known or word == OTHER_WORDS else f"unknown word '{_drawable(word)[:30]}'"


def _drawable(text):
    """The text with what matplotlib cannot draw (Chinese) or would read as a formula ($) as \\u escapes."""
    return text.encode("ascii", "backslashreplace").decode().replace("$", r"\u0024")
