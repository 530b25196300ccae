"""What a notebook says and keeps around a measurement: progress, tables, refusals in one line.

Nothing here fails a notebook: where torch, a GPU, another process or a writable folder is missing, a
line says so.
"""
import contextlib
import os
import time

from toolkit.costs import FIT_TOKENS, link_ms
from toolkit.crossover_panels import MEASURED, RECORDED, measured_source
from toolkit.decoder import Decoder, DecoderShape, random_tokens
from toolkit.handoff import PACED_GBPS, Peer, same_bits, send_paced
from toolkit.measure import CudaDevice, sweep_cuda, sweep_route
from toolkit.profiles import ProfileError, load_profile, parse_profile, profile_facts, profile_text, save_profile

STOP_HINT = "要停，按中断按钮 ■，已测的会保留 · to stop, press the interrupt button ■: what is measured is kept"
# The small decoder would leave a GPU waiting for its next kernel most of the time.
CUDA_SHAPE = DecoderShape(layers=4, d=1024, heads=8, kv_heads=2, head_dim=128, ff=2816)
CUDA_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)


def can_measure():
    """Whether to measure here; if not, say in one line why."""
    if os.environ.get("NBGRADER_EXECUTION"):
        print("批改时不测量 · nothing is measured while grading")
        return False
    try:
        import torch  # noqa: F401
    except Exception as error:  # a broken installation fails in many ways, and all mean "no"
        print(
            f"这一格需要 torch（{type(error).__name__}），其他内容不受影响 · this cell needs torch "
            f"({type(error).__name__}), all the rest works without: %pip install torch"
        )
        return False
    return True


@contextlib.contextmanager
def progress_bar(label):
    """Gives `progress(share)`, which moves a bar, or without ipywidgets a text line; at the end the time stays."""
    from IPython.display import display

    start, last = time.perf_counter(), -1
    bar = _bar(label)
    shown = {"text/plain": f"{label} · {STOP_HINT}"} if bar is None else bar
    handle = display(shown, raw=bar is None, display_id=True)

    def progress(share):
        nonlocal last
        percent = int(100 * share)
        if percent == last:
            return
        last = percent
        if bar is None:
            handle.update({"text/plain": f"{label}: {percent} % · {STOP_HINT}"}, raw=True)
        else:
            bar.children[1].value = percent

    try:
        yield progress
    finally:
        handle.update({"text/plain": f"{label}: {time.perf_counter() - start:.1f} s"}, raw=True)


def _bar(label):
    try:
        import ipywidgets
    except ImportError:
        return None
    text = ipywidgets.HTML(f"{label} · {STOP_HINT}")
    return ipywidgets.VBox([text, ipywidgets.IntProgress(max=100, layout={"width": "480px"})])


def handoff_table(reports):
    """Text table of {what was done: HandoffReport}: which check still finds both sides equal."""
    lines = [f"{'handoff':<20} {'payload':<8} {'logits':<8} {'tokens':<8} {'caught by':<10} logits differ by"]
    for name, report in reports.items():
        same = ["equal" if one else "DIFFER" for one in (report.payload, report.logits, report.tokens)]
        lines.append(
            f"{name:<20} {same[0]:<8} {same[1]:<8} {same[2]:<8} {report.caught_by or 'none':<10} {report.logit_error:.1e}"
        )
    return "\n".join(lines)


def sweep_report(measurement):
    """Text of a CPU or CUDA sweep: the least times, B*, the fits and their held-out error, and any warning."""
    best, walls = measurement.recompute.best_ms(), measurement.recompute.best_wall_ms()
    fit, error = _fit(measurement)
    clock = {"thread_cpu": "CPU ms", "cuda_event": "GPU ms"}[measurement.recompute.clock]
    lines = [_shape_line(measurement)]
    if measurement.stopped:
        lines.append(f"提前停止，{len(best)} 个长度有结果 · stopped early, with results for {len(best)} sizes")
    if best:
        lines.append(f"prompt tokens  recompute {clock}  wall ms  B* Gbps   fit ms  fit error")
    for n, ms in sorted(best.items()):
        fitted = "" if fit is None else f"{fit.ms(n):9.2f}  {fit.ms(n) / ms - 1:+8.1%}{'' if n in FIT_TOKENS else ' held out'}"
        wall = f"{walls[n]:8.2f}" if n in walls else " " * 8
        lines.append(f"{n:>13,}  {ms:16.2f} {wall}  {measurement.crossing_gbps(n):7.3f} {fitted}")
    if fit is None:
        lines.append("长度太少，不能拟合 · too few sizes for a fit")
    else:
        held_out = "no size held out" if error is None else (
            f"at the held-out sizes the mean error is {error.mean:.1%}, the largest {error.largest:.1%}")
        lines.append(f"recompute = {fit.c_ms:.3g} + {fit.d_ms:.3g} n + {fit.e_ms:.3g} n^2 ms; {held_out}")
        lines.append(f"the fit's hump of B*: highest at n = {fit.peak.tokens:,.0f}, {fit.peak.gbps:.3g} Gbps")
    if measurement.busy_warning():
        lines.append("⚠ " + measurement.busy_warning().replace(" · ", "\n⚠ "))
    elif measurement.busy_ratio:
        lines.append(f"wall / CPU time = {measurement.busy_ratio:.2f}: 机器不忙 · a quiet machine")
    return "\n".join(lines)


def kv_heads_table(measurements, tokens=1024):
    """Text table of the least recompute time and B* at `tokens` prompt tokens, one line a measurement."""
    lines = [f"at {tokens:,} prompt tokens", "kv heads  KV bytes a token  recompute ms       B* Gbps"]
    for one in measurements:
        ms, speed = "-", "not measured"
        if tokens in one.recompute.ms:
            ms, speed = f"{one.recompute.best_ms()[tokens]:.2f}", f"{one.crossing_gbps(tokens):.3f}"
        lines.append(f"{one.shape.kv_heads:>8}  {one.kv_bytes:>16,}  {ms:>12}  {speed:>12}")
    return "\n".join(lines)


def time_routes(measurement, link_gbps, progress, tokens=2048):
    """Time a paced link and another process as routes of the measurement's cache; print what was found.

    The series go into `measurement.transfer`. What this machine cannot do is said in a line. The stop
    button ends it; routes that are complete are kept.
    """
    _, cache = Decoder(measurement.shape).prefill(random_tokens(tokens, measurement.shape.vocab))
    sizes = [n for n in FIT_TOKENS if n <= tokens]
    lines = []
    try:
        if PACED_GBPS[0] <= link_gbps <= PACED_GBPS[1]:
            measurement.transfer[f"paced link {link_gbps:g} Gbps"] = sweep_route(
                cache, lambda part: send_paced(part, link_gbps), sizes, runs=2, warm_ups=0, seconds=4,
                progress=lambda share: progress(share / 3),
            )
        else:
            lines.append(f"{link_gbps:g} Gbps lies outside {PACED_GBPS}: no real delay, use the formula")
        with Peer() as peer:
            for turn, (name, route) in enumerate([("gloo, loopback", peer.over_gloo), ("shared memory", peer.over_shared_memory)], 1):
                route(cache)
                equal = "every bit arrived" if same_bits(cache, peer.returned(cache)) else "BITS DIFFER"
                lines.append(f"{name}: {equal}")
                measurement.transfer[name] = sweep_route(
                    cache, route, sizes, seconds=2, progress=lambda share, turn=turn: progress((turn + share) / 3)
                )
    except KeyboardInterrupt:
        lines.append("提前停止 · stopped early")
    except (RuntimeError, OSError) as error:
        lines.append(f"没有另一个进程的路径 · no route through another process: {str(error)[:200]}")
    print("\n".join([*lines, _route_table(measurement, link_gbps, sizes)]))


def _route_table(measurement, link_gbps, sizes):
    recompute = measurement.recompute.best_ms()
    lines = [f"{'least ms at':<26}" + "".join(f"{n:>9,}" for n in sizes)]
    lines.append(f"{'recompute':<26}" + "".join(f"{recompute[n]:>9.2f}" if n in recompute else f"{'-':>9}" for n in sizes))
    for route, series in measurement.transfer.items():
        best = series.best_ms()
        lines.append(f"{route:<26}" + "".join(f"{best[n]:>9.2f}" if n in best else f"{'-':>9}" for n in sizes))
    formula = [link_ms(n * measurement.kv_bytes, link_gbps) for n in sizes]
    lines.append(f"{f'formula, {link_gbps:g} Gbps':<26}" + "".join(f"{ms:>9.2f}" for ms in formula))
    return "\n".join(lines)


def write_profile(path, measurement, gpu=None):
    """Save the measurement to `path` where that can be written; returns its text, "" when it is unfit."""
    facts = profile_facts(measurement, gpu)
    try:
        save_profile(path, measurement, facts)
        print(f"已写入 · written: {path}")
    except ProfileError as error:
        print(f"没有保存 · not saved: {error}")
        return ""
    except OSError as error:
        print(f"这里不能写文件，只留在内存里 · no file can be written here, kept in memory: {error.strerror}")
    return profile_text(measurement, facts)


def read_profile(path, text, shape=None):
    """The Profile in the file `path`, or in `text` where there is no file; None, and a line, when it is refused."""
    try:
        try:
            return load_profile(path, shape)
        except OSError:
            return parse_profile(text, "memory", shape)
    except ProfileError as error:
        print(f"拒绝 · refused: {error}")
        return None


def measure_cuda(progress, shape=CUDA_SHAPE):
    """[Measurement] of the GPU here, its profile saved in the current folder; [] and one line where that fails."""
    try:
        gpu = CudaDevice()
        found = sweep_cuda(gpu, shape, CUDA_TOKENS, progress=progress)
        write_profile("kv-profile-cuda.json", found, gpu)
        return [found]
    except RuntimeError as error:  # memory that others hold, among much else
        print(f"GPU 测量失败 · measuring on the GPU failed: {str(error).splitlines()[0]}")
        return []


def measured_sources(measurements, provenance=MEASURED, origin=""):
    """Sources for `crossover_panel` of those measurements that have sizes enough for a fit."""
    return [measured_source(one, provenance, origin) for one in measurements if _fit(one)[0] is not None]


def recorded_sources(profiles, device):
    """The same for those Profiles that were loaded and are of this device ("cpu" or "cuda"), with its name."""
    return [
        source for profile in profiles if profile.measurement.device == device
        for source in measured_sources([profile.measurement], RECORDED, str(profile.provenance["device_name"]))
    ]


def _fit(measurement):
    try:
        return measurement.fit()
    except ValueError:
        return None, None


def _shape_line(measurement):
    shape = measurement.shape
    return (f"{shape.layers} layers, {shape.heads} heads, {shape.kv_heads} kv heads of {shape.head_dim}, {measurement.dtype}, "
            f"on {measurement.device}: {measurement.kv_bytes:,} KV bytes a token")
