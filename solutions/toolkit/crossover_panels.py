"""The three panels of chapter 39b: the crossover, the map of the learner's decisions, the destinations."""
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from toolkit.costs import (
    DEFAULT_MFU,
    DTYPE_BYTES,
    GPUS,
    MEASURED_KV_BYTES,
    MEASURED_PREFILL_MS,
    MODELS,
    Recompute,
    fit_recompute,
    prefill_recompute,
    transfer_ms,
)
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
    panel_toggle,
    panel_trouble,
)

MEASURED, RECORDED, COMPUTED, SIMULATED = "measured here", "recorded", "computed from published numbers", "simulated"
PROVENANCE_ZH = {MEASURED: "本机测量", RECORDED: "已记录", COMPUTED: "按公开数据计算", SIMULATED: "模拟"}
TRANSFER_COLOUR, RECOMPUTE_COLOUR, NO_ANSWER_COLOUR = "#0072B2", "#D55E00", "#FFFFFF"  # Okabe and Ito
NOT_DONE_YET = "not done yet"  # in a figure; beside it in both languages
LINK_STEPS = (1, 1.2, 1.5, 1.7, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8)
# B* in Gbps at these prompt lengths, measured on two x86-64 cores: shown where nothing is measured yet.
EXAMPLE_TOKENS = (64, 256, 1024, 4096)
EXAMPLE_CPU = {  # shape -> (KV bytes a token, B*)
    "MHA, 8 kv heads": (8192, (0.608, 0.678, 0.543, 0.307)),
    "GQA, 2 kv heads": (2048, (0.168, 0.188, 0.148, 0.082)),
    "MQA, 1 kv head": (1024, (0.084, 0.095, 0.072, 0.040)),
}


class TransferPath(NamedTuple):
    """A way to move the cache whose time was measured (or simulated): `transfer` has `.ms(tokens)`."""

    label: str
    provenance: str
    transfer: object


class Source(NamedTuple):
    """How long recompute takes for a model on a device, and how that is known.

    `label` (model or shape, device) and `origin` (where the numbers come from) are short ASCII texts: they
    go into the figure. `provenance` is one of MEASURED, RECORDED, COMPUTED and SIMULATED. `recompute` holds
    the fit and κ in `dtype`; `tokens` and `ms` are the measured points; `paths` are TransferPaths.
    """

    label: str
    provenance: str
    recompute: Recompute
    dtype: str = "float32"
    tokens: tuple = ()
    ms: tuple = ()
    origin: str = ""
    paths: tuple = ()


@panel_default_style
def crossover_panel(cpu=(), cuda=()):
    """Transfer and recompute time against prompt tokens, for a CPU tensor and a CUDA tensor.

    `cpu`, `cuda`: Sources that were measured here or loaded from a profile, the first one is shown first.
    Without `cpu` the recorded example of another machine is shown; beside `cuda` stand published GPUs.
    """
    cpu = tuple(cpu) or example_cpu_sources()
    cuda = tuple(cuda)
    left = _Crossover("CPU tensor", (32, 4096), (0.1, 2e4))
    right = _Crossover("CUDA tensor", (128, 131072), (0.1, 1e6))
    places = [*cuda, *_published_sources(), *GPUS]

    def update(values):
        zh_cpu, en_cpu = left.show(
            cpu[values["cpu_source"]], values["cpu_dtype"], values["cpu_link"], values["cpu_tokens"], values.get("cpu_path")
        )
        place = places[values["cuda_place"]]
        given = isinstance(place, Source)
        source = place if given else _computed_source(MODELS[values["model"]], GPUS[place], values["mfu"])
        zh, en = right.show(
            source, values["cuda_dtype"], values["cuda_link"], values["cuda_tokens"], values.get("cuda_path")
        )
        if given:
            zh, en = f"{zh}模型和 MFU 由这份数据决定。", f"{en} Model and MFU come with these data."
        if not cuda:
            zh += "这里没有 CUDA 测量，本课也没有附带已记录的 GPU 数据文件。"
            en += " Nothing was measured on CUDA here, and no recorded GPU profile is shipped."
        return Shown(f"CPU 张量：{zh_cpu} CUDA 张量：{zh}", f"CPU tensor: {en_cpu} CUDA tensor: {en}")

    def path_choice(side, sources):
        paths = sorted({path.label for source in sources for path in source.paths})
        # A value of None would leave the list blank.
        options = [("link slider · 链路滑块", "link"), *((path, path) for path in paths)]
        return [panel_choice(f"{side}_path", "传输路径 · path", options, "link")] if paths else []

    middle, cpu_links = 1 if len(cpu) > 1 and cpu[0].provenance != MEASURED else 0, link_values(0.02, 2)
    return Panel(
        "crossover", "传输还是重算：交叉点在哪里 · Transfer or recompute: where they cross",
        [left.plot, right.plot], update,
        [[
            [
                panel_slider("cpu_link", "CPU 链路 · link", cpu_links, _telling_link(cpu[middle], cpu_links), "Gbps"),
                panel_slider("cpu_tokens", "CPU 提示词 · prompt", token_values(32, 4096), 1024, "tokens", "{:,}"),
                panel_choice("cpu_source", "KV heads", [(_source_text(s), i) for i, s in enumerate(cpu)], middle),
                panel_choice("cpu_dtype", "KV 类型 · KV dtype", [(d, d) for d in ("float32", "bfloat16")], "float32"),
                *path_choice("cpu", cpu),
            ],
            [
                panel_slider("cuda_link", "CUDA 链路 · link", link_values(1, 400), 25, "Gbps"),
                panel_slider("cuda_tokens", "CUDA 提示词 · prompt", token_values(128, 131072), 4096, "tokens", "{:,}"),
                panel_choice("model", "模型 · model", [(name, name) for name in MODELS], "Llama-3.1-8B"),
                panel_choice("cuda_dtype", "KV 类型 · KV dtype", [(d, d) for d in ("bfloat16", "float8")], "bfloat16"),
                panel_choice(
                    "cuda_place", "在哪里重算 · recompute on", [(_place_text(p), i) for i, p in enumerate(places)],
                    0 if cuda else places.index("H100 SXM"),
                ),
                panel_slider("mfu", "MFU（公开 GPU）", [i / 20 for i in range(2, 17)], DEFAULT_MFU, "", "{:.2f}"),
                *path_choice("cuda", cuda),
            ],
        ]],
    )


@panel_default_style
def decision_map_panel(choose_handoff_mode):
    """Link against prompt tokens, coloured by `choose_handoff_mode(link_gbps, mb, recompute_ms)["mode"]`.

    The line is the true boundary B*(n). A point moves over the map and shows the learner's numbers.
    """
    figure = panel_figure(760, 430)
    axes = figure.add_axes((0.13, 0.13, 0.53, 0.8), xlim=(-1, 3), ylim=(np.log10(128), np.log10(131072)))
    axes.set(xlabel="link (Gbps)", ylabel="prompt tokens")
    # Powers on plain axes: an image on log axes would be drawn slowly and skewed.
    axes.set_xticks([-1, 0, 1, 2, 3], ["0.1", "1", "10", "100", "1000"])
    axes.set_yticks(np.log10([128, 512, 2048, 8192, 32768, 131072]), ["128", "512", "2,048", "8,192", "32,768", "131,072"])
    columns, rows = 64, 40
    links = 10 ** (-1 + 4 * (np.arange(columns) + 0.5) / columns)
    tokens = 10 ** (np.log10(128) + (np.log10(131072) - np.log10(128)) * (np.arange(rows) + 0.5) / rows)
    image = axes.imshow(
        np.ones((rows, columns, 3)), origin="lower", extent=(*axes.get_xlim(), *axes.get_ylim()), aspect="auto",
        interpolation="nearest",
    )
    grain, = axes.plot([], [], linestyle="", marker=".", markersize=3, color="black", alpha=0.6)
    halo, = axes.plot([], [], color="white", linewidth=5)
    boundary, = axes.plot([], [], color="black", linewidth=2, linestyle="--")
    point, = axes.plot([], [], marker="o", markersize=12, markerfacecolor="white", markeredgecolor="black", mew=2.5)
    verdict = axes.text(0.36, 0.14, "", transform=axes.transAxes, ha="center", va="center", fontsize=11,
                        bbox={"boxstyle": "round", "facecolor": "white"})
    here = figure.text(0.68, 0.42, "", va="top", fontsize=10)
    _map_legend(figure)
    known = {}  # the colours change with the model and the GPU only

    def repaint(values):
        key = values["model"], values["gpu"]
        if known.get("key") == key:
            return
        recompute = prefill_recompute(MODELS[values["model"]], GPUS[values["gpu"]])
        cells = [
            (link, n * recompute.kv_bytes / 1e6, ms)
            for n, ms in zip(tokens.tolist(), recompute.ms(tokens).tolist()) for link in links.tolist()
        ]
        answers, problem = panel_answers(choose_handoff_mode, cells)
        modes = [_mode_word(answer) for answer in answers] + ["no answer"] * (len(cells) - len(answers))
        modes = np.array(modes).reshape(rows, columns)
        truth = np.where(links >= recompute.crossing_gbps(tokens)[:, None], "transfer", "recompute")
        colours = {"transfer": TRANSFER_COLOUR, "recompute": RECOMPUTE_COLOUR}
        image.set_data(_rgb(modes, colours))
        row, column = np.nonzero(modes == "recompute")
        kept = (row % 3 == 1) & (column % 3 == 1)
        grain.set_data(np.log10(links[column[kept]]), np.log10(tokens[row[kept]]))
        for line in (halo, boundary):
            line.set_data(np.log10(recompute.crossing_gbps(tokens)), np.log10(tokens))
        verdict.set_text("TODO 2 is not done yet:\nonly the true boundary is drawn" if problem == "unfinished" else
                         "your function is too slow\nfor a whole map" if problem == "slow" else
                         f"your function raises\n{panel_lines(problem, 30, 3)}" if problem else "")
        known.update(key=key, problem=problem, wrong=float((modes != truth).mean()), recompute=recompute)

    def update(values):
        repaint(values)
        recompute, link, n = known["recompute"], values["link"], values["tokens"]
        point.set_data([np.log10(link)], [np.log10(n)])
        mb, right_ms = n * recompute.kv_bytes / 1e6, recompute.ms(n)
        moved_ms = transfer_ms(mb, link)
        right_mode = "transfer" if moved_ms <= right_ms else "recompute"
        answers, problem = panel_answers(choose_handoff_mode, [(link, mb, right_ms)])
        zh = f"{link:g} Gbps，{n:,} token，{mb:,.0f} MB：传输 {moved_ms:,.4g} ms，重算 {right_ms:,.4g} ms，应选 {right_mode}。"
        en = (f"{link:g} Gbps, {n:,} tokens, {mb:,.0f} MB: transfer {moved_ms:,.4g} ms, "
              f"recompute {right_ms:,.4g} ms, so {right_mode}.")
        if problem:
            here.set_text("at the point\nyour function: no answer")
            why_zh, why_en = panel_trouble("choose_handoff_mode", problem)
            return Shown(f"{zh}{why_zh}", f"{en} {why_en}")
        mode, (ratio_zh, ratio) = _mode_word(answers[0]), _ratio(answers[0], moved_ms)
        here.set_text(f"at the point\nyour mode: {mode}\nyour transfer_ms:\n{ratio}")
        wrong = f"{known['wrong']:.0%}" if 0 in (known["wrong"], 1) else f"{known['wrong']:.1%}"
        return Shown(
            f"{zh}你的函数：{mode}，transfer_ms {ratio_zh}；地图上 {wrong} 与边界不符。",
            f"{en} Your function: {mode}, its transfer_ms: {ratio}; {wrong} of the map disagrees with the boundary.",
        )

    return Panel(
        "decisions", "你的决定地图 · The map of your decisions",
        [PanelPlot(figure, [[image, grain, *axes.spines.values(), halo, boundary, verdict], [point, here]])], update,
        [[
            [
                panel_slider("link", "链路 · link", link_values(0.1, 1000), 25, "Gbps"),
                panel_slider("tokens", "提示词 · prompt", token_values(128, 131072), 4096, "tokens", "{:,}"),
            ],
            [
                panel_choice("model", "模型 · model", [(name, name) for name in MODELS], "Llama-3.1-8B"),
                panel_choice("gpu", "重算 GPU · recompute on", [(_gpu_text(name), name) for name in GPUS], "H100 SXM"),
            ],
        ]],
    )


@panel_default_style
def destinations_panel(evaluate_pool_capability, plan_route_with_fallback):
    """One request against three pools: which takes it, by transfer or recompute, and why the others do not.

    The pools are tried in order A, B, C. The handoff that is preferred is the faster one on pool A.
    """
    model = MODELS["Llama-3.1-8B"]
    gpus = {"A": "H100 SXM", "B": "H20", "C": "L40S"}
    figure = panel_figure(840, 330)
    axes = figure.add_axes((0.13, 0.15, 0.6, 0.76), xscale="log", xlim=(0.1, 1e5), ylim=(2.6, -0.6))
    axes.set(xlabel="time on this pool (ms, computed from published numbers)")
    axes.set_yticks([0, 1, 2], [f"pool {name}\n{gpu}{_unverified(GPUS[gpu])}".replace(" (", "\n(") for name, gpu in gpus.items()])
    bars = [axes.barh([row - 0.18, row + 0.18], [1, 1], height=0.32, color=[TRANSFER_COLOUR, RECOMPUTE_COLOUR],
                      left=0.1) for row in range(3)]
    for row in bars:
        row[1].set_hatch("//")
        row[1].set_edgecolor("white")
    chosen, = axes.plot([], [], marker="*", markersize=18, color="black", markeredgecolor="white", linestyle="")
    verdicts = [figure.text(0.74, 0.91 - 0.76 * (row + 0.6) / 3.2, "", va="center") for row in range(3)]
    axes.legend(handles=[bars[0][0], bars[0][1]], labels=["transfer", "recompute"], loc="lower right", fontsize=9)

    def update(values):
        n = values["tokens"]
        mb = n * model.kv_bytes(DTYPE_BYTES[values["dtype"]]) / 1e6
        request = {"stage": "decode", "model_revision": "rev-a", "kv_dtype": values["dtype"], "kv_layout": "paged-v1",
                   "required_memory_gb": mb / 1e3}
        pools = [
            {"pool_id": f"pool-{name}", "healthy": values[f"healthy_{name}"], "supported_stages": ["decode"],
             "model_revision": "rev-a", "kv_dtype": values[f"dtype_{name}"], "kv_layout": values[f"layout_{name}"],
             "available_memory_gb": values[f"free_{name}"]}
            for name in gpus
        ]
        moved_ms = transfer_ms(mb, values["link"])
        recompute_ms = [prefill_recompute(model, GPUS[gpu]).ms(n) for gpu in gpus.values()]
        preferred = "transfer" if moved_ms <= recompute_ms[0] else "recompute"
        judged = [panel_answers(evaluate_pool_capability, [(dict(request), dict(pool))]) for pool in pools]
        routes, problem = panel_answers(
            plan_route_with_fallback, [(dict(request), dict(pools[0]), [dict(pool) for pool in pools[1:]], preferred)]
        )
        route = routes[0] if routes and isinstance(routes[0], dict) else {}
        selected, mode, decision = (
            panel_str(route.get(field)) for field in ("selected_pool", "execution_mode", "decision")
        )
        chosen.set_data([], [])
        table = [("池 · pool", "GPU", "传输 · transfer ms", "重算 · recompute ms", "能执行 · can execute",
                  "能接收 KV · can accept KV", "原因 · reasons", "路由 · route")]
        for row, (pool, gpu, again_ms, (found, trouble)) in enumerate(zip(pools, gpus.values(), recompute_ms, judged)):
            answer = found[0] if found and isinstance(found[0], dict) else {}
            takes = selected == pool["pool_id"]
            for bar, ms in zip(bars[row], (moved_ms, again_ms)):
                bar.set_width(max(ms - 0.1, 0))
                bar.set_alpha(1.0 if takes or not route else 0.35)
            reasons = _reason_text(answer.get("reasons")) or trouble.replace("unfinished", NOT_DONE_YET)
            if takes and mode in ("transfer", "recompute"):
                ms, at = (moved_ms, row - 0.18) if mode == "transfer" else (again_ms, row + 0.18)
                chosen.set_data([ms], [at])
            lines = _verdict(takes, mode, reasons, pool["pool_id"], route)
            verdicts[row].set_text("\n".join(lines))
            style = "bold" if takes else "normal", min(9, 41 / len(lines))  # 5 lines of size 8.2 fill a row
            if style != (verdicts[row].get_fontweight(), verdicts[row].get_fontsize()):
                verdicts[row].set(fontweight=style[0], fontsize=style[1])
            table.append((pool["pool_id"], _gpu_text(gpu), f"{moved_ms:,.1f}", f"{again_ms:,.1f}", _yes(answer.get("can_execute")),
                          _yes(answer.get("can_accept_kv")), reasons.replace(NOT_DONE_YET, f"{NOT_DONE_YET} · 尚未完成") or "-", f"{mode} ★" if takes else ""))
        zh = f"{n:,} token，KV {mb / 1e3:.2f} GB，{values['link']:g} Gbps；在 A 上更快的是 {preferred}。"
        en = f"{n:,} tokens, {mb / 1e3:.2f} GB of KV, {values['link']:g} Gbps; on pool A {preferred} is faster. "
        if problem:
            why_zh, why_en = panel_trouble("plan_route_with_fallback", problem)
            return Shown(f"{zh}{why_zh}", f"{en}{why_en}", tuple(table))
        reasons = _reason_text(route.get("reasons"))
        refused = route.get("rejected_pools", {})
        return Shown(
            f"{zh}你的路由：{decision}，{selected}，{mode}；原因：{reasons or '无'}；被拒绝：{_refused(refused) or '无'}。",
            f"{en}Your route: {decision}, {selected}, {mode}; reasons: {reasons or 'none'}; "
            f"refused: {_refused(refused) or 'none'}.",
            tuple(table),
        )

    def column(name, healthy, free, dtype, layout):
        return [
            panel_toggle(f"healthy_{name}", f"{name} 健康 · healthy", healthy),
            panel_choice(f"free_{name}", f"{name} 可用 · free (GB)", [(f"{gb}", gb) for gb in (0, 0.5, 1, 2, 4, 8, 16, 24)], free),
            panel_choice(f"dtype_{name}", f"{name} dtype", [(d, d) for d in ("bfloat16", "float16", "float8")], dtype),
            panel_choice(f"layout_{name}", f"{name} layout", [(v, v) for v in ("paged-v1", "paged-v2", "contiguous")], layout),
        ]

    return Panel(
        "destinations", "同一个请求，三个池 · One request, three pools (Llama-3.1-8B)",
        [PanelPlot(figure, [verdicts, [*(bar for row in bars for bar in row), chosen]])], update,
        [
            [  # what the request brings stands above the three pools
                [panel_slider("link", "链路 · link", link_values(1, 400), 25, "Gbps")],
                [panel_slider("tokens", "提示词 · prompt", token_values(512, 131072), 8192, "tokens", "{:,}"),
                 panel_choice("dtype", "请求 · request dtype", [(d, d) for d in ("bfloat16", "float16", "float8")], "bfloat16")],
            ],
            [
                column("A", False, 16, "bfloat16", "paged-v1"),
                column("B", True, 24, "bfloat16", "contiguous"),
                column("C", True, 8, "bfloat16", "paged-v1"),
            ],
        ],
    )


def link_values(low, high):
    """Link speeds in Gbps from low to high, about 13 in each factor of ten."""
    values = [round(step * 10**power, 4) for power in range(-3, 4) for step in LINK_STEPS]
    return [value for value in values if low <= value <= high]


def token_values(low, high):
    """Token counts from low to high, four steps in each doubling."""
    return [2**power * step // 4 for power in range(2, 20) for step in (4, 5, 6, 7) if low <= 2**power * step // 4 <= high]


def example_cpu_sources():
    """Recorded Sources of the small decoder on another CPU, for where nothing has been measured."""
    sources = []
    for label, (kv_bytes, gbps) in EXAMPLE_CPU.items():
        ms = [8 * kv_bytes * n / speed / 1e6 for n, speed in zip(EXAMPLE_TOKENS, gbps)]
        fit = fit_recompute(EXAMPLE_TOKENS, ms, kv_bytes)
        sources.append(Source(label, RECORDED, fit, "float32", EXAMPLE_TOKENS, tuple(ms), "two x86-64 cores"))
    return tuple(sources)


def measured_source(measurement, provenance=MEASURED, origin=""):
    """The Source of a Measurement (toolkit.measure): one just taken, or that of a loaded profile (RECORDED).

    The routes that it timed become paths; a paced link's time is a sleep, so it counts as simulated.
    """
    shape, best = measurement.shape, measurement.recompute.best_ms()
    kind = "MHA" if shape.kv_heads == shape.heads else "MQA" if shape.kv_heads == 1 else "GQA"
    paths = tuple(
        TransferPath(panel_ascii(route), SIMULATED if "paced" in route else provenance, measurement.transfer_fit(route))
        for route in measurement.transfer
    )
    return Source(
        f"{kind}, {shape.kv_heads} kv head{'s' if shape.kv_heads > 1 else ''}", provenance, measurement.fit()[0],
        measurement.dtype, tuple(best), tuple(best.values()), origin, paths,
    )


def _published_sources():
    """The measured A100 and H100 runs of the Splitwise paper, as recorded Sources."""
    sources = []
    for label in ("A100 TP2", "H100 TP2", "H100 TP8"):
        points = MEASURED_PREFILL_MS[label]
        fit = fit_recompute(list(points), list(points.values()), MEASURED_KV_BYTES)
        sources.append(Source(
            f"Llama2-70B, {label}", RECORDED, fit, "bfloat16", tuple(points), tuple(points.values()), "Splitwise, ISCA 2024"
        ))
    return sources


def _computed_source(model, gpu, mfu):
    return Source(
        f"{model.name}, {gpu.name}{_unverified(gpu)}", COMPUTED, prefill_recompute(model, gpu, mfu), "bfloat16",
        origin=f"MFU {mfu:.2f}",
    )


def _telling_link(source, links):
    """The link that lies best between the top of the hump of B* and its higher end: there two crossings show."""
    if not source.tokens:
        return 0.17
    speeds = source.recompute.crossing_gbps(np.geomspace(min(source.tokens), max(source.tokens), 60))
    wanted = np.sqrt(speeds.max() * max(speeds[0], speeds[-1]))
    return min(links, key=lambda link: abs(np.log(link / wanted)))


def _source_text(source):
    return source.label if source.provenance == MEASURED else f"{source.label}: {source.origin or source.provenance}"


def _place_text(place):
    return f"{place.label}: {place.provenance}" if isinstance(place, Source) else f"{_gpu_text(place)}: computed"


def _unverified(gpu):
    return "" if gpu.verified else " (unverified)"


def _gpu_text(name):
    return name if GPUS[name].verified else f"{name} (unverified · 未核实)"


class _Crossover:
    """One of the two plots: axes with fixed limits, the artists that move, and the words for them."""

    def __init__(self, title, tokens, ms):
        figure, left = panel_figure(420, 400), 0.03
        self._title, self._floor = title, ms[0] / 10
        self._asked, self._words = None, None
        self._n = np.geomspace(*tokens, 120)
        axes = figure.add_axes((0.15, 0.13, 0.83, 0.66), xscale="log", yscale="log", xlim=tokens, ylim=ms)
        axes.set(xlabel="prompt tokens")
        axes.set_ylabel("ms", labelpad=0)
        ticks = [n for n in (32, 128, 512, 2048, 8192, 32768) if tokens[0] <= n <= tokens[1]]
        axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
        axes.minorticks_off()
        axes.grid(color="#DDDDDD", linewidth=0.7)
        self._transfer, = axes.plot([], [], color=TRANSFER_COLOUR, linestyle="--", linewidth=2.2)
        self._recompute, = axes.plot([], [], color=RECOMPUTE_COLOUR, linewidth=2.2)
        self._points, = axes.plot([], [], color=RECOMPUTE_COLOUR, linestyle="", marker="o", mfc="white", markersize=6)
        self._crossings, = axes.plot([], [], color="black", linestyle="", marker="D", markersize=9)
        self._at = axes.axvline(1, color="black", linestyle=":", linewidth=1.5)
        # Two strips at the bottom say who wins where; their heights differ as well as their colours.
        strip = axes.get_xaxis_transform()
        axes.text(0.02, 0.085, "faster at each length:", transform=axes.transAxes, fontsize=8, color="#555555")
        self._strips = [
            axes.plot([], [], color=colour, linewidth=7, solid_capstyle="butt", transform=strip)[0]
            for colour in (TRANSFER_COLOUR, RECOMPUTE_COLOUR)
        ]
        self._source = figure.text(left, 0.95, "", fontsize=10.5, fontweight="bold", va="center")
        # The curves rise to the right: the upper left corner is always free.
        self._speed, self._mode = (
            axes.text(
                0.03, y, "", transform=axes.transAxes, fontsize=12, fontweight="bold", va="top",
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1},
            )
            for y in (0.96, 0.885)
        )
        self._labels = [
            figure.text(left + 0.064, 0.885 - 0.05 * row, "", fontsize=8, color=colour, va="center")
            for row, colour in enumerate((RECOMPUTE_COLOUR, TRANSFER_COLOUR))
        ]
        for row, line in enumerate((self._recompute, self._transfer)):
            figure.add_artist(_legend_line(figure, left, 0.885 - 0.05 * row, line))
        # Letters take longest to draw: those that another link leaves alone lie below.
        self.plot = PanelPlot(figure, [
            [self._source, *self._labels, self._recompute, self._points],
            [self._at, self._speed],
            [*self._strips, self._transfer, self._crossings, self._mode],
        ])

    def show(self, source, dtype, link_gbps, tokens, path_label):
        """Draw a Source for this link and prompt; return what is shown, in Chinese and in English."""
        asked = source, dtype, link_gbps, tokens, path_label
        if asked != self._asked:  # else the other plot has moved
            self._asked, self._words = asked, self._draw(*asked)
        return self._words

    def _draw(self, source, dtype, link_gbps, tokens, path_label):
        kv_bytes = source.recompute.kv_bytes * DTYPE_BYTES[dtype] / DTYPE_BYTES[source.dtype]
        recompute = replace(source.recompute, kv_bytes=kv_bytes)
        path = next((path for path in source.paths if path.label == path_label), None)
        if path:
            moved, how, how_from = path.transfer.ms, path.label, path.provenance
        else:
            def moved(n):
                return transfer_ms(n * kv_bytes / 1e6, link_gbps)
            how, how_from = f"link {link_gbps:g} Gbps", "computed, MB x 8 / Gbps"
        # A fit says nothing beyond its points: neither a line nor a winner is drawn there.
        n = self._n if not source.tokens else np.geomspace(min(source.tokens), max(source.tokens), len(self._n))
        crossings = _crossings(n, moved, recompute.ms)
        wins = moved(n) <= recompute.ms(n)
        self._transfer.set_data(self._n, np.maximum(moved(self._n), self._floor))
        _set_if_new(self._recompute, n, recompute.ms(n))
        _set_if_new(self._points, source.tokens, source.ms)
        _set_if_new(self._at, [tokens, tokens], [0, 1])
        self._crossings.set_data(crossings, [recompute.ms(at) for at in crossings])
        for strip, mine, height in zip(self._strips, (wins, ~wins), (0.05, 0.02)):
            strip.set_data(n, np.where(mine, height, np.nan))
        speed = recompute.crossing_gbps(tokens)
        origin = ", ".join(part for part in (source.provenance, panel_ascii(source.origin)) if part)
        mode = "transfer" if moved(tokens) <= recompute.ms(tokens) else "recompute"
        self._speed.set_text(f"B*({tokens:,}) = {speed:.3g} Gbps")
        self._mode.set_text(f"{how}: {mode}")
        heading = f"{self._title}: {panel_ascii(source.label)}"
        if heading != self._source.get_text():  # a size that is set again counts as a change
            self._source.set(text=heading, fontsize=min(10.5, 430 / len(heading)))
        self._labels[0].set_text(f"recompute: {origin}{'; points and fit' if source.tokens else ''}")
        self._labels[1].set_text(f"transfer: {how_from}")
        outside = not n[0] * 0.999 <= tokens <= n[-1] * 1.001
        origin_zh = PROVENANCE_ZH[source.provenance]
        how_zh = PROVENANCE_ZH[how_from] if path else "按公式计算"
        zh = (f"{source.label}（重算：{origin_zh}{source.origin and ', ' + source.origin}），{dtype}，{how}（传输：{how_zh}），{tokens:,} token：传输 {moved(tokens):,.4g} ms，"
              f"重算 {recompute.ms(tokens):,.4g} ms，{mode} 更快；B* = {speed:.3g} Gbps；{_crossing_zh(crossings, wins)}。"
              + ("这个长度没有测量过，是外推。" if outside else ""))
        en = (f"{source.label} (recompute: {source.provenance}{source.origin and ', ' + source.origin}), {dtype}, {how} (transfer: {how_from}), {tokens:,} tokens: "
              f"transfer {moved(tokens):,.4g} ms, recompute {recompute.ms(tokens):,.4g} ms, {mode} is faster; "
              f"B* = {speed:.3g} Gbps; {_crossing_en(crossings, wins)}."
              + (" This length lies outside the measured ones: extrapolated." if outside else ""))
        return zh, en


def _set_if_new(line, x, y):
    """Keep an unchanged line as it is: it then need not be drawn again."""
    if not (np.array_equal(line.get_xdata(), x) and np.array_equal(line.get_ydata(), y)):
        line.set_data(x, y)


def _crossings(n, transfer, recompute):
    """Prompt lengths where the two curves cross, within the range of n."""
    gap = np.log(transfer(n)) - np.log(recompute(n))
    at = np.nonzero(np.sign(gap[1:]) != np.sign(gap[:-1]))[0]
    share = gap[at] / (gap[at] - gap[at + 1])
    return [float(x) for x in n[at] * (n[at + 1] / n[at]) ** share]


def _crossing_zh(crossings, wins):
    if not crossings:
        return f"没有交叉点，{'传输' if wins[0] else '重算'}总是更快"
    return f"交叉点 {len(crossings)} 个：{'、'.join(f'{n:,.0f}' for n in crossings)} token"


def _crossing_en(crossings, wins):
    if not crossings:
        return f"no crossing, {'transfer' if wins[0] else 'recompute'} is always faster"
    places = " and ".join(f"{n:,.0f}" for n in crossings)
    return f"{len(crossings)} crossing{'s' if len(crossings) > 1 else ''} at {places} tokens"


def _legend_line(figure, x, y, line):
    from matplotlib.lines import Line2D

    return Line2D([x, x + 0.054], [y, y], color=line.get_color(), linestyle=line.get_linestyle(), linewidth=2.2,
                  transform=figure.transFigure)


def _map_legend(figure):
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure.legend(
        handles=[
            Patch(facecolor=TRANSFER_COLOUR, label="your answer: transfer"),
            Patch(facecolor=RECOMPUTE_COLOUR, hatch="..", label="your answer: recompute"),
            Patch(facecolor=NO_ANSWER_COLOUR, edgecolor="black", label="no such answer"),
            Line2D([], [], color="black", linestyle="--", linewidth=2, label="true boundary B*(n)"),
        ],
        loc="upper left", bbox_to_anchor=(0.665, 0.95), frameon=False, handlelength=2.5, handleheight=1.8,
    )


def _rgb(modes, colours):
    from matplotlib.colors import to_rgb

    painted = np.empty((*modes.shape, 3))
    painted[:] = to_rgb(NO_ANSWER_COLOUR)
    for mode, colour in colours.items():
        painted[modes == mode] = to_rgb(colour)
    return painted


def _mode_word(answer):
    mode = answer.get("mode") if isinstance(answer, dict) else None
    return str.__str__(mode) if isinstance(mode, str) and mode in ("transfer", "recompute") else "no such answer"


def _ratio(answer, true_ms):
    """How the answer's transfer_ms compares with the true one, in Chinese and in English."""
    found = answer.get("transfer_ms") if isinstance(answer, dict) else None
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not abs(found) < 1e300:
        return "不是数", "not a number"
    if abs(found - true_ms) <= 1e-4:  # the contract rounds to 4 decimals
        return "正确", "right"
    return f"是正确值的 {found / true_ms:.4g} 倍", f"{found / true_ms:.4g} x the true one"


def _verdict(takes, mode, reasons, pool_id, route):
    """Lines beside a pool's bars, one a reason."""
    refused = route.get("rejected_pools")
    if takes:
        said = f"takes it: {mode}, {reasons}"
    elif isinstance(refused, dict) and pool_id in refused:
        said = f"refused:, {reasons}"
    else:
        said = "not asked" if route else "no route yet"
    return panel_lines(said.strip(", ").replace(", ", "\n"), 24, 8).split("\n")


def _reason_text(reasons):
    return ", ".join(map(panel_str, reasons)) if isinstance(reasons, (list, tuple)) else ""


def _refused(rejected):
    if not isinstance(rejected, dict):
        return panel_str(rejected)
    return "; ".join(f"{panel_str(pool)}: {_reason_text(reasons)}" for pool, reasons in rejected.items())


def _yes(value):
    return {True: "是 · yes", False: "否 · no"}.get(value, "?") if isinstance(value, bool) else "?"

