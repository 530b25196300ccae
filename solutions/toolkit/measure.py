"""Measuring recompute and transfer so that the answer repeats on another day.

On a CPU: one torch thread, discarded warm-ups, sizes interleaved, and of several runs the least
thread CPU time, which a busy machine lengthens far less than wall time. On a GPU: events on the
stream that does the work.
"""
import contextlib
import subprocess
import time
from dataclasses import dataclass, field

from toolkit.costs import FIT_TOKENS, fit_error, fit_recompute, fit_transfer, measured_crossing_gbps
from toolkit.decoder import Decoder, DecoderShape, one_thread, random_tokens
from toolkit.handoff import copy_in_memory, device_routes

SWEEP_TOKENS = (32, 64, 128, 256, 512, 1024, 2048)
SWEEP_SECONDS = 9.0  # no further pass is begun that would likely end after this
BUSY_RATIO = 1.1  # wall / CPU time above which other work on this machine took part of the time
COPY_IN_MEMORY = "copy in memory"


@dataclass
class Series:
    """Raw samples by prompt tokens. `clock`: "thread_cpu" (wall time beside it), "cuda_event" or "wall"."""

    clock: str
    ms: dict = field(default_factory=dict)  # tokens -> list of ms
    wall_ms: dict = field(default_factory=dict)  # the same for wall time; empty for the other clocks

    def add(self, tokens, ms, wall_ms=None):
        """Append one sample."""
        self.ms.setdefault(tokens, []).append(round(ms, 6))  # whole ns, so that a profile keeps all of it
        if wall_ms is not None:
            self.wall_ms.setdefault(tokens, []).append(round(wall_ms, 6))

    def best_ms(self):
        """{tokens: least ms}: what disturbs a run only ever lengthens it."""
        return {tokens: min(samples) for tokens, samples in self.ms.items()}

    def best_wall_ms(self):
        """{tokens: least wall ms}, empty where none was taken."""
        return {tokens: min(samples) for tokens, samples in self.wall_ms.items()}


@dataclass
class Measurement:
    """What a sweep found: recompute, and transfer by route. `stopped`: somebody ended it early."""

    device: str  # "cpu" or "cuda"
    shape: DecoderShape
    dtype: str
    settings: dict
    recompute: Series
    transfer: dict  # route -> Series
    stopped: bool = False

    @property
    def kv_bytes(self):
        """KV cache bytes a token."""
        return self.shape.kv_bytes(self.dtype)

    @property
    def busy_ratio(self):
        """Wall / CPU time of all prefills, or None where there is no wall time."""
        wall, cpu = (sum(map(sum, by_size.values())) for by_size in (self.recompute.wall_ms, self.recompute.ms))
        return wall / cpu if wall else None

    def busy_warning(self):
        """One line in two languages when the machine was busy, else None."""
        ratio = self.busy_ratio
        if ratio is None or ratio <= BUSY_RATIO:
            return None
        return (
            f"机器正忙：墙钟时间是 CPU 时间的 {ratio:.2f} 倍，结果会偏差较大 · "
            f"this machine is busy: wall time is {ratio:.2f} times CPU time, expect a wider spread"
        )

    def crossing_gbps(self, tokens):
        """B* in Gbps at a measured size: the link on which moving takes as long as recomputing."""
        return measured_crossing_gbps(self.kv_bytes, tokens, self.recompute.best_ms()[tokens])

    def fit(self):
        """(Recompute, FitError at the held-out sizes): fitted at FIT_TOKENS. ValueError for under 3 of these."""
        best = self.recompute.best_ms()
        fitted = [tokens for tokens in best if tokens in FIT_TOKENS]
        held_out = [tokens for tokens in best if tokens not in FIT_TOKENS]
        found = fit_recompute(fitted, [best[n] for n in fitted], self.kv_bytes)
        return found, fit_error(found, held_out, [best[n] for n in held_out]) if held_out else None

    def transfer_fit(self, route):
        """The Transfer a + b·n of one measured route."""
        best = self.transfer[route].best_ms()
        return fit_transfer(list(best), list(best.values()))


def sweep(shape=None, sizes=SWEEP_TOKENS, runs=10, progress=None, seconds=SWEEP_SECONDS):
    """Measure prefill and the copy of its cache on this CPU in float32: a Measurement.

    `progress(share)` is told the share done, 0 to 1, after every sample. After a first whole pass, no
    pass is begun that would likely end later than `seconds`. KeyboardInterrupt (a notebook's stop
    button) ends the sweep: what it has is kept, and `stopped` is set.
    """
    decoder = Decoder(shape)
    prompts = {tokens: random_tokens(tokens, decoder.shape.vocab) for tokens in sizes}
    recompute, copies = Series("thread_cpu"), Series("thread_cpu")

    def sample(tokens, kept):
        (_, cache), *prefill_times = cpu_timed(lambda: decoder.prefill(prompts[tokens]))
        _, *copy_times = cpu_timed(lambda: copy_in_memory(cache))
        if kept:
            recompute.add(tokens, *prefill_times)
            copies.add(tokens, *copy_times)

    with one_thread():
        stopped = _stopped(lambda: interleave(sample, sizes, runs, progress=progress, seconds=seconds))
    settings = {"threads": 1, "warm_ups": 1, "runs": runs, "sizes": list(sizes)}
    return Measurement(
        "cpu", decoder.shape, "float32", settings, recompute, {COPY_IN_MEMORY: copies}, stopped
    )


def sweep_route(cache, route, sizes=SWEEP_TOKENS, runs=3, warm_ups=1, progress=None, seconds=SWEEP_SECONDS):
    """Wall time of a route (toolkit.handoff) for the first n tokens of `cache`, n in `sizes`: a Series.

    Wall time, because another process or a sleep does not spend this thread's CPU time.
    """
    series = Series("wall")
    # A causal prefill's cache begins with the cache of the shorter prompt.
    caches = {n: [(k[:, :n].contiguous(), v[:, :n].contiguous()) for k, v in cache] for n in sizes}

    def sample(tokens, kept):
        start = time.perf_counter()
        route(caches[tokens])
        if kept:
            series.add(tokens, (time.perf_counter() - start) * 1e3)

    interleave(sample, sizes, runs, warm_ups, progress, seconds)
    return series


def sweep_cuda(gpu, shape=None, sizes=SWEEP_TOKENS, dtype=None, runs=5, progress=None, seconds=SWEEP_SECONDS):
    """Measure prefill and all routes of its cache on a CudaDevice: a Measurement. As `sweep` otherwise.

    `dtype` is a torch dtype's name, by default what `cuda_dtype` says. TF32 is off meanwhile.
    """
    dtype = dtype or cuda_dtype(gpu.capability)
    decoder = Decoder(shape, device=gpu.device, dtype=dtype)
    prompts = {n: random_tokens(n, decoder.shape.vocab).to(gpu.device) for n in sizes}
    recompute, transfer, routes, caches = Series("cuda_event"), {}, {}, {}

    def prefill(tokens):
        _, caches[tokens] = decoder.prefill(prompts[tokens])

    def sample(tokens, kept):
        [ms] = gpu.event_times_ms(lambda: prefill(tokens))
        if kept:
            recompute.add(tokens, ms)
        cache = caches[tokens]
        if tokens not in routes:
            routes[tokens] = device_routes(cache, gpu)
        for name, route in routes[tokens].items():
            # Pageable copies block the CPU and leave gaps on the stream, so only a wall clock sees all of them.
            if name == "pageable host":
                clock, [ms] = "wall", gpu.wall_times_ms(lambda route=route: route(cache))
            else:
                clock, [ms] = "cuda_event", gpu.event_times_ms(lambda route=route: route(cache), copying=True)
            if kept:
                transfer.setdefault(name, Series(clock)).add(tokens, ms)

    with tf32_off():
        stopped = _stopped(lambda: interleave(sample, sizes, runs, progress=progress, seconds=seconds))
    settings = {"tf32": False, "warm_ups": 1, "runs": runs, "sizes": list(sizes)}
    return Measurement("cuda", decoder.shape, dtype, settings, recompute, transfer, stopped)


def interleave(sample, sizes, runs, warm_ups=1, progress=None, seconds=SWEEP_SECONDS):
    """Call `sample(tokens, kept)` for all sizes in turn, pass after pass.

    Interleaved, so that a slow moment of the machine does not fall on one size alone. The `warm_ups`
    first passes are not `kept`. The largest size takes about half of a pass and is measured in every
    second one only. After one kept pass, a pass that would likely end after `seconds` is left out.
    """
    start = time.perf_counter()
    smaller = [tokens for tokens in sizes if tokens < max(sizes)]
    passes = [sizes] * warm_ups + [smaller if turn % 2 else sizes for turn in range(runs)]
    done, total = 0, sum(map(sum, passes))
    longest = 0.0
    for turn, chosen in enumerate(passes):
        begun = time.perf_counter()
        for tokens in chosen:
            sample(tokens, turn >= warm_ups)
            done += tokens
            if progress is not None and done < total:
                progress(done / total)
        now = time.perf_counter()
        longest = max(longest, now - begun)
        if turn >= warm_ups and (now - start) + longest > seconds:
            break
    if progress is not None:
        progress(1.0)


def _stopped(work):
    """Whether KeyboardInterrupt ended `work()`."""
    try:
        work()
    except KeyboardInterrupt:
        return True
    return False


def cpu_timed(work):
    """(what `work()` returns, ms of this thread's CPU time, ms of wall time)."""
    wall, cpu = time.perf_counter(), time.thread_time()
    result = work()
    return result, (time.thread_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3


@contextlib.contextmanager
def tf32_off():
    """float32 products in full on a GPU: TF32 keeps 10 bits of the fraction and would spoil comparisons."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def cuda_dtype(capability):
    """The 16-bit dtype to use: bfloat16 has no fast hardware below compute capability (8, 0)."""
    return "bfloat16" if tuple(capability) >= (8, 0) else "float16"


def cuda_ready():
    """(whether a real kernel runs on a GPU here, why not). is_available() alone can be wrong."""
    import torch

    if not torch.cuda.is_available():
        return False, "torch sees no CUDA device"
    try:
        ones = torch.ones(64, 64, device="cuda")
        total = float((ones @ ones).sum())
    except Exception as error:  # an unfit driver or build fails in many ways, and all mean "no"
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return False, f"a CUDA device is listed, but a kernel fails on it: {reason}"
    if total != 64**3:
        return False, f"a CUDA device is listed, but computes wrong: found {total:.0f}, expected {64**3}"
    return True, ""


class CudaDevice:
    """One GPU and its clock. `second` is another GPU's name, or None; `cuda` is torch.cuda or its stand-in."""

    def __init__(self, index=0, cuda=None):
        import torch

        self.cuda = cuda or torch.cuda
        self.index = index
        self.device = f"cuda:{index}"
        self.capability = tuple(self.cuda.get_device_capability(index))
        self.second = next((f"cuda:{i}" for i in range(self.cuda.device_count()) if i != index), None)
        self._copies = self.cuda.Stream(device=self.device)

    def host_buffer(self, size, pinned):
        """`size` bytes of host memory, page-locked if `pinned`: only then can a copy run beside other work."""
        import torch

        return torch.empty(size, dtype=torch.uint8, pin_memory=pinned)

    def event_times_ms(self, work, runs=1, copying=False):
        """GPU time of each run of `work()` in ms, on the current stream or (`copying`) on one of its own.

        All runs are queued before the one wait at the end, which would otherwise be timed too.
        """
        working = self.cuda.current_stream(self.device)
        stream = self._copies if copying else working
        if copying:
            stream.wait_stream(working)
        marks = []
        with self.cuda.stream(stream):
            for _ in range(runs):
                start, end = (self.cuda.Event(enable_timing=True) for _ in range(2))
                start.record(stream)
                work()
                end.record(stream)
                marks.append((start, end))
        marks[-1][1].synchronize()
        return [start.elapsed_time(end) for start, end in marks]

    def wall_times_ms(self, work, runs=1):
        """Wall time of each run of `work()` in ms, with the GPU idle before and after."""
        times = []
        for _ in range(runs):
            self.cuda.synchronize(self.device)
            start = time.perf_counter()
            work()
            self.cuda.synchronize(self.device)
            times.append((time.perf_counter() - start) * 1e3)
        return times

    def facts(self):
        """What a profile must say about the GPU; "unknown" for what nvidia-smi does not tell."""
        import torch

        told = _nvidia_smi(self.index)
        return {
            "device_name": self.cuda.get_device_name(self.index),
            "compute_capability": ".".join(map(str, self.capability)),
            "memory_gb": round(self.cuda.get_device_properties(self.index).total_memory / 1e9, 1),
            "cuda": str(torch.version.cuda or "unknown"),
            **told,
        }


def _nvidia_smi(index):
    asked = {
        "driver": "driver_version",
        "clocks": "clocks.sm",
        "max_clocks": "clocks.max.sm",
        "power_limit": "power.limit",
        "pcie_generation": "pcie.link.gen.current",
        "pcie_width": "pcie.link.width.current",
    }
    command = ["nvidia-smi", f"--id={index}", f"--query-gpu={','.join(asked.values())}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        answer = ""
    told = [part.strip() for part in answer.split(",")]
    if len(told) != len(asked):
        told = [""] * len(asked)
    return {name: part or "unknown" for name, part in zip(asked, told, strict=True)}
