"""The estimator with scripted clocks, the sweep on the real CPU, and the CUDA path on a stand-in."""
import subprocess
import threading

import pytest
import torch

from toolkit import measure
from toolkit.costs import Recompute
from toolkit.decoder import Decoder, DecoderShape
from toolkit.handoff import same_bits
from toolkit.measure import (
    CudaDevice,
    Measurement,
    Series,
    cpu_timed,
    cuda_dtype,
    cuda_ready,
    interleave,
    one_thread,
    sweep,
    sweep_cuda,
    sweep_route,
    tf32_off,
)

SMALL = DecoderShape(layers=2, d=32, heads=4, kv_heads=2, head_dim=8, ff=48, vocab=50)


def measurement(samples, wall=None, shape=None):
    series = Series("thread_cpu", samples, wall or {})
    return Measurement("cpu", shape or DecoderShape(), "float32", {"threads": 1}, series, {})


def test_crossing_is_that_of_the_least_time():
    found = measurement({1024: [150.0, 134.217728, 140.0]})
    assert found.crossing_gbps(1024) == pytest.approx(0.5)  # 8 * 8192 * 1024 bits in 134 ms
    quarter = measurement({1024: [134.217728]}, shape=DecoderShape(kv_heads=2))
    assert quarter.crossing_gbps(1024) == pytest.approx(0.125)


def test_busy_warning_compares_wall_and_cpu_time():
    quiet = measurement({32: [1.0, 1.0], 64: [2.0]}, {32: [1.0, 1.1], 64: [2.2]})
    busy = measurement({32: [1.0, 1.0], 64: [2.0]}, {32: [1.0, 1.0], 64: [4.0]})
    assert quiet.busy_ratio == pytest.approx(1.075) and quiet.busy_warning() is None
    assert busy.busy_ratio == 1.5 and "1.50 times CPU time" in busy.busy_warning()
    assert measurement({32: [1.0]}).busy_ratio is None and measurement({32: [1.0]}).busy_warning() is None


def test_fit_holds_out_sizes_and_reports_their_error():
    true = Recompute(2.0, 0.1, 5e-5, 8192)
    samples = {n: [true.ms(n)] for n in measure.SWEEP_TOKENS}
    samples[128] = [true.ms(128) / 1.25]
    fit, error = measurement(samples).fit()
    assert (fit.c_ms, fit.d_ms, fit.e_ms, fit.kv_bytes) == pytest.approx((2.0, 0.1, 5e-5, 8192))
    assert error == pytest.approx((0.25 / 3, 0.25))  # held out: 32, 128, 512
    with pytest.raises(ValueError, match="different sizes"):
        measurement({32: [1.0], 64: [2.0]}).fit()


def test_passes_are_interleaved_and_warm_ups_dropped():
    calls, shares = [], []
    interleave(lambda n, kept: calls.append((n, kept)), (1, 2, 5), runs=3, progress=shares.append)
    warm_up, first, second, third = calls[:3], calls[3:6], calls[6:8], calls[8:]
    assert warm_up == [(1, False), (2, False), (5, False)]
    assert first == third == [(1, True), (2, True), (5, True)] and second == [(1, True), (2, True)]
    assert shares == sorted(shares) and shares[0] == 1 / 27 and shares[-1] == 1.0
    assert len(shares) == len(calls)


def test_a_slow_machine_gets_fewer_passes_but_one_whole(monkeypatch):
    now, calls = [0.0], []
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])

    def sample(tokens, kept):
        now[0] += 1.5
        calls.append(kept)

    interleave(sample, (1, 2), runs=10, seconds=9.0, progress=calls.append)
    assert [call for call in calls if call is True].count(True) == 3 and calls[-1] == 1.0  # 3 s of warm-up, 3, 1.5
    calls.clear()
    interleave(sample, (1, 2), runs=10, seconds=0.1)
    assert calls == [False, False, True, True]


def test_cpu_time_is_this_threads_only():
    def work():
        release = threading.Event()
        spinner = threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(release.is_set, True)])
        spinner.start()
        release.wait(0.1)
        release.set()
        spinner.join()
        return 7

    result, cpu_ms, wall_ms = cpu_timed(work)
    assert result == 7 and cpu_ms < wall_ms / 2 and wall_ms >= 100


def test_one_thread_is_restored_even_after_an_error():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError), one_thread():
            assert torch.get_num_threads() == 1
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_sweep_on_this_cpu():
    before, shares = torch.get_num_threads(), []
    found = sweep(SMALL, sizes=(16, 64, 256), runs=3, progress=shares.append)
    assert torch.get_num_threads() == before and shares[-1] == 1.0 and not found.stopped
    assert {n: len(ms) for n, ms in found.recompute.ms.items()} == {16: 3, 64: 3, 256: 2}
    assert {n: len(ms) for n, ms in found.recompute.wall_ms.items()} == {16: 3, 64: 3, 256: 2}
    assert found.recompute.best_ms()[256] > found.recompute.best_ms()[16]
    assert list(found.transfer) == ["copy in memory"] and found.transfer_fit("copy in memory").b_ms > 0
    assert found.kv_bytes == 2 * 2 * 2 * 8 * 4 and found.busy_ratio > 0.9


def interrupt_after(count):
    """A progress function that presses the stop button at its `count`-th call."""
    def progress(share):
        shares.append(share)
        if len(shares) == count:
            raise KeyboardInterrupt

    shares = []
    return progress


def test_the_stop_button_ends_a_sweep_that_keeps_what_it_has():
    before = torch.get_num_threads()
    found = sweep(SMALL, sizes=(16, 64), runs=100_000, seconds=3600, progress=interrupt_after(5))
    assert found.stopped and torch.get_num_threads() == before
    assert {n: len(ms) for n, ms in found.recompute.ms.items()} == {16: 2, 64: 1}  # 2 warm-ups before
    nothing = sweep(SMALL, sizes=(16, 64), progress=interrupt_after(1))
    assert nothing.stopped and nothing.recompute.ms == {} and nothing.busy_warning() is None
    assert sweep_cuda(StandInGpu(), SMALL, sizes=(16, 64), progress=interrupt_after(3)).stopped


def test_route_is_given_prefixes_and_timed_by_the_wall():
    _, cache = Decoder(SMALL).prefill(range(40))
    seen = []
    series = sweep_route(cache, seen.append, sizes=(8, 40), runs=2)
    assert [one[0][0].shape[1] for one in seen] == [8, 40, 8, 40, 8]
    assert same_bits(seen[0], [(k[:, :8], v[:, :8]) for k, v in cache]) and seen[0][0][0].is_contiguous()
    assert series.clock == "wall" and {n: len(ms) for n, ms in series.ms.items()} == {8: 2, 40: 1}


class StandInGpu:
    """A GPU with a scripted clock that works on CPU tensors."""

    device, second = "cpu", None

    def __init__(self, capability=(9, 0)):
        self.capability, self.timed = capability, []

    def host_buffer(self, size, pinned):
        return torch.empty(size, dtype=torch.uint8)

    def event_times_ms(self, work, runs=1, copying=False):
        work()
        self.timed.append("copy stream" if copying else "stream")
        return [0.25 if copying else 2.0]

    def wall_times_ms(self, work, runs=1):
        work()
        self.timed.append("wall")
        return [0.75]


def test_cuda_sweep_takes_each_time_with_its_clock():
    gpu = StandInGpu()
    before = torch.get_float32_matmul_precision()
    found = sweep_cuda(gpu, SMALL, sizes=(16, 32), runs=2)
    assert gpu.timed[:4] == ["stream", "copy stream", "copy stream", "wall"]
    assert found.device == "cuda" and found.dtype == "bfloat16" and found.settings["tf32"] is False
    assert found.recompute == Series("cuda_event", {16: [2.0, 2.0], 32: [2.0]})
    assert {name: (series.clock, series.best_ms()) for name, series in found.transfer.items()} == {
        "device to device": ("cuda_event", {16: 0.25, 32: 0.25}),
        "pinned host": ("cuda_event", {16: 0.25, 32: 0.25}),
        "pageable host": ("wall", {16: 0.75, 32: 0.75}),
    }
    assert found.crossing_gbps(32) == pytest.approx(8 * (2 * 2 * 2 * 8 * 2) * 32 / 2.0 / 1e6)
    assert found.busy_ratio is None and torch.get_float32_matmul_precision() == before


def test_old_gpus_get_float16():
    assert [cuda_dtype(c) for c in ((7, 5), (8, 0), (8, 9), (10, 0))] == ["float16"] + ["bfloat16"] * 3
    assert sweep_cuda(StandInGpu((7, 5)), SMALL, sizes=(8,), runs=1).dtype == "float16"
    assert sweep_cuda(StandInGpu(), SMALL, sizes=(8,), runs=1, dtype="float32").dtype == "float32"


def test_tf32_is_off_only_inside():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with tf32_off():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


class FakeCuda:
    """torch.cuda that only writes down what it is asked; every event is 1 ms after the one before."""

    def __init__(self):
        self.log, self.clock = [], 0

    def get_device_capability(self, index):
        return (7, 5)

    def get_device_name(self, index):
        return "Stand-in T4"

    def get_device_properties(self, index):
        return type("Properties", (), {"total_memory": 15_843_721_216})

    def device_count(self):
        return 2

    def Stream(self, device):
        return FakeStream(self, "own")

    def current_stream(self, device):
        return FakeStream(self, "current")

    def stream(self, stream):
        self.log.append(f"on {stream.name}")
        return measure.contextlib.nullcontext()

    def synchronize(self, device):
        self.log.append("synchronize")

    def Event(self, enable_timing):
        assert enable_timing
        return FakeEvent(self)


class FakeStream:
    def __init__(self, cuda, name):
        self.cuda, self.name = cuda, name

    def wait_stream(self, other):
        self.cuda.log.append(f"{self.name} waits for {other.name}")


class FakeEvent:
    def __init__(self, cuda):
        self.cuda = cuda

    def record(self, stream):
        self.cuda.clock += 1
        self.at = self.cuda.clock
        self.cuda.log.append(f"event on {stream.name}")

    def synchronize(self):
        self.cuda.log.append(f"wait for event {self.at}")

    def elapsed_time(self, end):
        return float(end.at - self.at)


def test_events_lie_on_the_working_stream_with_one_wait_at_the_end():
    fake = FakeCuda()
    gpu = CudaDevice(0, fake)
    assert gpu.event_times_ms(lambda: fake.log.append("work"), runs=2) == [1.0, 1.0]
    each = ["event on current", "work", "event on current"]
    assert fake.log == ["on current", *each, *each, "wait for event 4"]


def test_copies_run_on_a_stream_of_their_own_after_the_work_before():
    fake = FakeCuda()
    CudaDevice(0, fake).event_times_ms(lambda: fake.log.append("work"), copying=True)
    assert fake.log == [
        "own waits for current", "on own", "event on own", "work", "event on own", "wait for event 2",
    ]


def test_wall_clock_waits_for_the_gpu_on_both_sides():
    fake = FakeCuda()
    [ms] = CudaDevice(0, fake).wall_times_ms(lambda: fake.log.append("work"))
    assert fake.log == ["synchronize", "work", "synchronize"] and ms >= 0


@pytest.mark.parametrize("answer, driver, power", [
    ("535.104.05, 585 MHz, 1590 MHz, 70.00 W, 3, 16\n", "535.104.05", "70.00 W"),
    ("No devices were found\n", "unknown", "unknown"), (None, "unknown", "unknown"),
])
def test_gpu_facts_say_unknown_rather_than_nothing(monkeypatch, answer, driver, power):
    def run(command, **_):
        if answer is None:
            raise FileNotFoundError(command[0])
        return subprocess.CompletedProcess(command, 0, answer)

    monkeypatch.setattr(measure.subprocess, "run", run)
    gpu = CudaDevice(1, FakeCuda())
    facts = gpu.facts()
    assert gpu.device == "cuda:1" and gpu.second == "cuda:0"
    assert (facts["driver"], facts["power_limit"], facts["compute_capability"]) == (driver, power, "7.5")
    assert facts["device_name"] == "Stand-in T4" and facts["memory_gb"] == 15.8
    assert facts["pcie_width"] == ("16" if answer and "," in answer else "unknown")


def test_a_listed_gpu_that_runs_no_kernel_is_not_ready(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda_ready() == (False, "torch sees no CUDA device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "ones", lambda *_, device: (_ for _ in ()).throw(RuntimeError("no kernel image\nmore")))
    ready, reason = cuda_ready()
    assert not ready and reason.endswith("a kernel fails on it: no kernel image")
    monkeypatch.setattr(torch, "ones", lambda *size, device: torch.full(size, 2.0))
    assert cuda_ready()[1].endswith("found 1048576, expected 262144")
    monkeypatch.setattr(torch, "ones", lambda *size, device: torch.full(size, 1.0))
    assert cuda_ready() == (True, "")


@pytest.mark.skipif(not cuda_ready()[0], reason="no CUDA device here")
def test_real_gpu_moves_every_bit_on_every_route():
    gpu = CudaDevice()
    _, cache = Decoder(SMALL, device=gpu.device, dtype=cuda_dtype(gpu.capability)).prefill(range(40))
    for route in measure.device_routes(cache, gpu).values():
        arrived = route(cache)
        gpu.cuda.synchronize()
        assert same_bits(cache, arrived)
    assert sweep_cuda(gpu, SMALL, sizes=(8, 16), runs=1).recompute.best_ms()[8] > 0


@pytest.mark.slow
def test_crossing_repeats_within_a_factor():
    first, second = (sweep(DecoderShape(), sizes=(64, 256, 1024), runs=6).crossing_gbps(1024) for _ in range(2))
    assert 0.5 < first / second < 2
