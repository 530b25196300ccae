"""Closed forms against published figures, the hump of B*, crossings, and fits on data with known coefficients."""
import csv
import math
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from toolkit.costs import (
    GPUS,
    MEASURED_KV_BYTES,
    MEASURED_PREFILL_MS,
    MODELS,
    Recompute,
    fit_error,
    fit_recompute,
    fit_transfer,
    kv_bytes_per_token,
    link_ms,
    measured_crossing_gbps,
    prefill_ms,
    prefill_recompute,
    transfer_ms,
)

SPLITWISE = Path(__file__).parents[3] / "shared" / "measurements" / "splitwise_perf_model.csv"
HUMP = Recompute(c_ms=2.0, d_ms=0.1, e_ms=5e-5, kv_bytes=8192)  # like the small decoder on a CPU: peak at 200


def test_units():
    assert transfer_ms(100, 200) == 4.0
    assert link_ms(8192 * 1024, 0.1) == pytest.approx(671.08864)  # 8.39 MB, not MiB
    for link in (0, -1):
        with pytest.raises(ValueError, match="link_gbps"):
            transfer_ms(1, link)


@pytest.mark.parametrize("name, kv_bytes, equal_at", [
    ("Llama-3.1-8B", 131_072, 53), ("Llama-3.1-70B", 327_680, 104), ("Qwen2.5-7B", 57_344, 65),
    ("Qwen2.5-72B", 327_680, 107), ("Qwen3-235B-A22B", 192_512, 27), ("Mixtral-8x7B", 131_072, 96),
    ("DeepSeek-V3 MLA", 70_272, 28),
])
def test_published_model_figures(name, kv_bytes, equal_at):
    model = MODELS[name]
    linear, square = model.flops_per_token()
    assert model.kv_bytes() == kv_bytes
    assert math.floor(linear / square / 1000) == equal_at  # thousand tokens at which attention costs as much


def test_mla_keeps_one_latent_and_no_heads():
    assert kv_bytes_per_token(61, 128, 128, 2, latent_dim=576) == 61 * 576 * 2
    assert kv_bytes_per_token(4, 8, 32, 4) == 8192


@pytest.mark.parametrize("model, gpu, gbps", [
    ("Llama-3.1-8B", "A100 SXM 80 GB", (10.4, 9.8, 6.5)),
    ("Llama-3.1-8B", "H100 SXM", (33.1, 31.1, 20.7)),
    ("Llama-3.1-8B", "H20", (5.0, 4.6, 3.1)),
    ("Llama-3.1-8B", "T4", (2.2, 2.0, 1.4)),
    ("Llama-3.1-70B", "H100 SXM", (8.5, 8.2, 6.5)),
    ("DeepSeek-V3 MLA", "H100 SXM", (3.5, 3.1, 1.6)),
])
def test_published_crossing_bandwidths(model, gpu, gbps):
    recompute = prefill_recompute(MODELS[model], GPUS[gpu], 0.45)
    found = [recompute.crossing_gbps(n) for n in (512, 4096, 32_768)]
    assert found == pytest.approx(gbps, abs=0.06)  # one decimal was published, of parameters in three digits


def test_mfu_is_linear_and_a_share():
    model, gpu = MODELS["Llama-3.1-8B"], GPUS["H20"]
    assert prefill_ms(model, gpu, 4096, 0.9) == pytest.approx(prefill_ms(model, gpu, 4096) / 2)
    assert prefill_ms(model, gpu, 4096) == pytest.approx(924.6, rel=1e-3)  # 61.6 TFLOP at 66.6 TFLOP/s
    for mfu in (0, 1.1, 45):
        with pytest.raises(ValueError, match="mfu"):
            prefill_recompute(model, gpu, mfu)


def test_unconfirmed_gpus_are_marked():
    assert [name for name, gpu in GPUS.items() if not gpu.verified] == ["H20", "L40S", "L4"]
    assert all("to be checked" in gpu.source for gpu in GPUS.values())


@pytest.mark.parametrize("instance, gbps", [  # at 128, 512, 2048, 4096, 8192 tokens
    ("A100 TP2", (4.1, 6.9, 7.8, 7.2, 7.2)), ("A100 TP8", (5.1, 14.4, 19.6, 16.2, 13.9)),
    ("H100 TP2", (6.9, 16.0, 17.3, 16.7, 16.0)), ("H100 TP8", (5.8, 24.9, 39.2, 27.5, 25.4)),
])
def test_measured_crossing_bandwidths(instance, gbps):
    points = MEASURED_PREFILL_MS[instance]
    found = [measured_crossing_gbps(MEASURED_KV_BYTES, n, points[n]) for n in (128, 512, 2048, 4096, 8192)]
    assert found == pytest.approx(gbps, abs=0.06)


@pytest.mark.skipif(not SPLITWISE.is_file(), reason="the measured table is not beside this checkout")
def test_measured_prefill_is_the_median_of_the_published_runs():
    runs = defaultdict(list)
    with SPLITWISE.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["model"] == "llama2-70b" and row["batch_size"] == "1" and "pcap" not in row["hardware"]:
                gpu = row["hardware"].split("-")[0].upper()
                runs[f"{gpu} TP{row['tensor_parallel']}", int(row["prompt_size"])].append(float(row["prompt_time"]))
    medians = {key: statistics.median(times) for key, times in runs.items()}
    stored = {(name, n): ms for name, points in MEASURED_PREFILL_MS.items() for n, ms in points.items()}
    assert medians.keys() == stored.keys()
    assert [stored[key] for key in medians] == pytest.approx(list(medians.values()), rel=1e-3)


def test_hump_and_its_peak():
    tokens = np.arange(1, 4097)
    curve = HUMP.crossing_gbps(tokens)
    assert tokens[curve.argmax()] == 200 and HUMP.peak.tokens == pytest.approx(200)
    assert curve.max() == pytest.approx(HUMP.peak.gbps)
    assert HUMP.peak.gbps == pytest.approx(8 * 8192 / (0.1 + 2 * math.sqrt(2.0 * 5e-5)) / 1e6)
    assert (np.diff(curve[:199]) > 0).all() and (np.diff(curve[200:]) < 0).all()


def test_peak_without_curvature_or_start_up():
    assert Recompute(2.0, 0.1, 0.0, 8192).peak == (math.inf, pytest.approx(0.65536))
    assert Recompute(0.0, 0.1, 5e-5, 8192).peak == (0.0, pytest.approx(0.65536))


@pytest.mark.parametrize("link_gbps, count", [(0.7, 0), (0.5, 2), (0.35, 1), (0.01, 0)])
def test_none_one_or_two_crossings(link_gbps, count):
    found = HUMP.crossing_tokens(link_gbps, 32, 2048)
    assert len(found) == count and found == sorted(found)
    for tokens in found:  # both ways take as long there
        assert transfer_ms(8192 * tokens / 1e6, link_gbps) == pytest.approx(HUMP.ms(tokens))


def test_crossings_at_the_edges():
    assert HUMP.crossing_tokens(HUMP.peak.gbps * (1 - 1e-12)) == pytest.approx([200, 200], rel=1e-4)
    assert HUMP.crossing_tokens(HUMP.peak.gbps * 1.0001) == []
    assert Recompute(2.0, 0.1, 0.0, 8192).crossing_tokens(0.3) == pytest.approx([2 / (0.065536 / 0.3 - 0.1)])
    assert Recompute(0.0, 0.1, 0.0, 8192).crossing_tokens(0.3) == []
    assert Recompute(0.0, 0.1, 5e-5, 8192).crossing_tokens(0.3) == pytest.approx([(0.065536 / 0.3 - 0.1) / 5e-5])
    tiny_curve = Recompute(2.0, 0.1, 1e-16, 8192)  # where the textbook formula would lose the small root
    assert tiny_curve.crossing_tokens(0.3) == pytest.approx([2 / (0.065536 / 0.3 - 0.1)])


@pytest.mark.parametrize("coefficients", [(-1, 1, 1, 1), (1, -1, 1, 1), (1, 0, 0, 1), (1, 1, 1, 0)])
def test_senseless_coefficients_are_refused(coefficients):
    with pytest.raises(ValueError, match="coefficient"):
        Recompute(*coefficients)


SIZES = np.array([32, 64, 128, 256, 512, 1024, 2048, 4096])


def test_fits_find_exact_coefficients():
    fit = fit_recompute(SIZES, HUMP.ms(SIZES), 8192)
    assert (fit.c_ms, fit.d_ms, fit.e_ms) == pytest.approx((2.0, 0.1, 5e-5))
    line = fit_transfer(SIZES, 0.05 + 0.0007 * SIZES)
    assert (line.a_ms, line.b_ms) == pytest.approx((0.05, 0.0007))
    assert fit_error(fit, SIZES, HUMP.ms(SIZES) * 1.1) == pytest.approx((1 / 11, 1 / 11))


def test_fits_are_relative():
    """3 % of noise moves the start-up time c little; plain least squares puts it anywhere, even below 0."""
    random = np.random.default_rng(7)
    found, plain = [], []
    for _ in range(200):
        noisy = HUMP.ms(SIZES) * (1 + 0.03 * random.standard_normal(len(SIZES)))
        fit = fit_recompute(SIZES, noisy, 8192)
        found.append((fit.c_ms, fit.d_ms, fit.e_ms))
        plain.append(np.polyfit(SIZES, noisy, 2)[2])
    assert np.mean(found, axis=0) == pytest.approx((2.0, 0.1, 5e-5), rel=0.02)
    assert np.std(found, axis=0) / (2.0, 0.1, 5e-5) == pytest.approx((0.08, 0.035, 0.055), rel=0.5)
    assert min(plain) < 0 < np.min(found)


def test_a_coefficient_that_would_be_negative_is_left_out():
    saturating = 2.0 + 3.0 * np.sqrt(SIZES)  # bends down: e would be negative
    fit = fit_recompute(SIZES, saturating, 8192)
    assert fit.e_ms == 0 and fit.c_ms > 0 and fit.d_ms > 0
    steep = 1e-4 * SIZES**2.0 - 1e-3 * SIZES  # c, d negative
    fit = fit_recompute(SIZES, np.maximum(steep, 1e-3), 8192)
    assert min(fit.c_ms, fit.d_ms) >= 0 < fit.e_ms
    assert fit_transfer([100, 200, 400], [1.0, 3.0, 9.0]).a_ms == 0


@pytest.mark.parametrize("tokens, ms, word", [
    ([64, 64, 128], [1, 1, 2], "2 different"), ([64, 128, 256], [1, 0, 2], "0 or less"), ([0, 1, 2], [1, 1, 2], "0 or"),
])
def test_fits_refuse_what_they_cannot_fit(tokens, ms, word):
    with pytest.raises(ValueError, match=word):
        fit_recompute(tokens, ms, 8192)
