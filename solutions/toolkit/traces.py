"""Request traces: real ones read from their published files, synthetic ones where there is no network.

A trace always says where it comes from (`origin`), so that a plot of it cannot pass for something else.
"""
import csv
import hashlib
import math
import os
import re
import threading
import urllib.request
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

AZURE_TITLE = "Azure LLM inference trace 2023"  # CC BY 4.0; Patel et al., Splitwise, ISCA 2024
AZURE_URL = "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data/"
AZURE_FILES = {  # kind -> (published file, its SHA-256)
    "code": (
        "AzureLLMInferenceTrace_code.csv",
        "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
    ),
    "conversation": (
        "AzureLLMInferenceTrace_conv.csv",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
    ),
}
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
DOWNLOAD_SECONDS = 8  # all of it: name lookup, connection and transfer

# What `fit_azure` gives for the two published files (a test repeats the fit):
# - *_knots: token counts at the cumulative shares KNOT_LEVELS;
# - joint: requests in 10,000 by prompt band (rows) and generated band (columns), see *_EDGES.
#   A single correlation would not do: long prompts with long answers are rarer than it says;
# - arrivals: mean rate, and for counts in windows of window_s seconds the standard deviation of the
#   logarithm of the window's rate (spread) and its correlation from one window to the next (memory).
KNOT_LEVELS = (0, .01, .02, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .98, .99, .995, 1)
PROMPT_EDGES = (512, 1024, 2048, 4096)
DECODE_EDGES = (64, 128, 256, 512)
AZURE_FITS = {
    "code": {
        "requests": 8819,
        "rate_per_s": 2.567,
        "window_s": 10,
        "spread": 1.151,
        "memory": 0.633,
        "prompt_knots": [
            3, 17, 35, 75, 147, 385, 770, 1075, 1469, 1909, 2433, 3193, 5194, 7315, 7436, 7436, 7436, 7437,
        ],
        "decode_knots": [6, 6, 6, 6, 7, 8, 9, 11, 13, 16, 20, 29, 55, 90, 172, 252, 361, 1899],
        "joint": [
            [2141, 122, 43, 17, 6],
            [1331, 77, 36, 10, 3],
            [2264, 132, 46, 15, 6],
            [2169, 101, 48, 12, 12],
            [1293, 73, 29, 9, 3],
        ],
    },
    "conversation": {
        "requests": 19366,
        "rate_per_s": 5.53,
        "window_s": 60,
        "spread": 0.211,
        "memory": 0.881,
        "prompt_knots": [
            2, 29, 91, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315, 2735, 4083, 4098, 4142, 4831, 14050,
        ],
        "decode_knots": [7, 16, 24, 41, 54, 77, 91, 103, 129, 177, 384, 400, 424, 451, 540, 601, 644, 1000],
        "joint": [
            [480, 2377, 1061, 24, 5],
            [72, 240, 29, 737, 56],
            [195, 405, 385, 2312, 227],
            [564, 458, 155, 9, 2],
            [99, 86, 22, 1, 1],
        ],
    },
}


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in order of arrival: three arrays of equal length, and where they come from.

    `arrival_s` counts seconds from the first request; the other two are whole numbers of tokens.
    """

    name: str
    origin: str
    arrival_s: np.ndarray = field(repr=False)
    prompt_tokens: np.ndarray = field(repr=False)
    decode_tokens: np.ndarray = field(repr=False)

    def __post_init__(self):
        sizes = [len(self.arrival_s), len(self.prompt_tokens), len(self.decode_tokens)]
        if min(sizes) == 0 or len(set(sizes)) > 1:
            raise ValueError(f"trace {self.name}: found arrays of {sizes} items, expected equal and not 0")

    def __len__(self):
        return len(self.arrival_s)

    def requests(self, limit=None):
        """The first `limit` requests (all by default) as dicts of plain ints, as the TODOs take them."""
        pairs = zip(self.prompt_tokens[:limit].tolist(), self.decode_tokens[:limit].tolist(), strict=True)
        return [{"prompt_tokens": prompt, "decode_tokens": decode} for prompt, decode in pairs]


def azure_trace(kind, path=None):
    """The published Azure trace "code" or "conversation", or a synthetic one that says so.

    With a `path` that file is read, or the error raised. Without, the published address is tried,
    except under COURSE_OFFLINE or NBGRADER_EXECUTION (environment); when that gives nothing, or
    another file than the known one, the result is `synthetic_azure(kind)` and `origin` says why.
    """
    _check_kind(kind)
    if path is not None:
        return read_azure_csv(path)
    for name in ("COURSE_OFFLINE", "NBGRADER_EXECUTION"):
        if os.environ.get(name):
            return synthetic_azure(kind, remark=f"{name} is set")
    file_name, sha256 = AZURE_FILES[kind]
    data = _download(AZURE_URL + file_name)
    if data is None:
        return synthetic_azure(kind, remark="published file not reachable")
    if hashlib.sha256(data).hexdigest() != sha256:
        return synthetic_azure(kind, remark="checksum of the published file differs")
    return _parse_azure(data, file_name)


def read_azure_csv(path):
    """Read a file with the columns TIMESTAMP, ContextTokens and GeneratedTokens.

    Raises FileNotFoundError with the path, or ValueError that names file, line and field.
    """
    return _parse_azure(Path(path).read_bytes(), str(path))


def synthetic_azure(kind, n=None, seed=2023, remark=""):
    """A made-up trace of `n` requests (as many as the real one by default) like Azure's `kind`.

    Token counts follow the fitted quantiles and the shares of pairs of length bands (so class shares
    are right at the band edges, and off by some percent between them), arrivals the fitted rate and
    its ups and downs. Not kept: single repeated prompts, silences of minutes, and any link between
    length and time. The same seed gives the same trace.
    """
    _check_kind(kind)
    fit = AZURE_FITS[kind]
    n = fit["requests"] if n is None else n
    rng = np.random.default_rng(seed)
    shares = np.array(fit["joint"], float) / np.sum(fit["joint"])
    prompt_band, decode_band = np.divmod(rng.choice(shares.size, n, p=shares.ravel()), shares.shape[1])
    origin = f"synthetic, fitted to {AZURE_TITLE}, {kind}" + (f" ({remark})" if remark else "")
    return Trace(
        f"Azure-like {kind}",
        origin,
        _arrivals(fit, n, rng),
        _lengths(fit["prompt_knots"], PROMPT_EDGES, shares.sum(axis=1), prompt_band, rng),
        _lengths(fit["decode_knots"], DECODE_EDGES, shares.sum(axis=0), decode_band, rng),
    )


def fit_azure(trace, window_s):
    """The parameters of `synthetic_azure` for a trace; arrivals are counted in windows of `window_s`."""
    joint, *_ = np.histogram2d(
        np.searchsorted(PROMPT_EDGES, trace.prompt_tokens),  # band 0: at most the first edge
        np.searchsorted(DECODE_EDGES, trace.decode_tokens),
        bins=(np.arange(len(PROMPT_EDGES) + 2), np.arange(len(DECODE_EDGES) + 2)),
    )
    counts = np.bincount((trace.arrival_s // window_s).astype(int))[:-1]  # the last window is cut short
    mean, variance = counts.mean(), counts.var()
    # Counts vary by chance (variance = mean) and because the rate varies; only the latter is fitted.
    rate_variance = (variance - mean) / mean**2
    covariance = np.mean((counts[1:] - mean) * (counts[:-1] - mean)) / mean**2
    spread = math.sqrt(math.log1p(rate_variance))
    return {
        "requests": len(trace),
        "rate_per_s": round(float(len(trace) / trace.arrival_s[-1]), 3),
        "window_s": window_s,
        "spread": round(spread, 3),
        "memory": round(math.log1p(covariance) / spread**2, 3),
        "prompt_knots": _knots(trace.prompt_tokens),
        "decode_knots": _knots(trace.decode_tokens),
        "joint": np.rint(joint * 10_000 / len(trace)).astype(int).tolist(),
    }


def describe(trace, long_prompt_threshold=2048, long_decode_threshold=256):
    """The trace in figures, as text: span, quantiles (sorted value at index floor(p * n)), the three classes."""
    def quantiles(tokens):
        ordered = np.sort(tokens)
        return " / ".join(f"{ordered[int(level * len(ordered))]:,}" for level in (0.5, 0.9, 0.99))

    long_prompt = trace.prompt_tokens > long_prompt_threshold
    long_decode = trace.decode_tokens > long_decode_threshold
    prefill, decode = int((long_prompt & ~long_decode).sum()), int((long_decode & ~long_prompt).sum())
    return "\n".join([
        f"{trace.name}: {len(trace):,} requests in {trace.arrival_s[-1]:,.1f} s ({trace.origin})",
        f"prompt tokens p50 / p90 / p99: {quantiles(trace.prompt_tokens)}",
        f"generated tokens p50 / p90 / p99: {quantiles(trace.decode_tokens)}",
        f"prefill / decode / shared (prompt > {long_prompt_threshold}, generated > {long_decode_threshold}): "
        f"{prefill:,} / {decode:,} / {len(trace) - prefill - decode:,}",
    ])


def _check_kind(kind):
    if kind not in AZURE_FILES:
        raise ValueError(f"unknown trace {kind!r}, expected one of: {', '.join(AZURE_FILES)}")


def _download(url):
    """The bytes at `url`, or None when they do not arrive in time."""
    arrived = []

    def fetch():
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                arrived.append(reply.read())
        except Exception:  # offline has many faces (DNS, proxy, TLS, HTTP): all mean "no file"
            pass

    # In a thread, because urllib's timeout covers neither the name lookup nor a trickling reply.
    worker = threading.Thread(target=fetch, daemon=True)
    worker.start()
    worker.join(DOWNLOAD_SECONDS)
    return arrived[0] if arrived else None


def _parse_azure(data, source):
    try:
        lines = data.decode("utf-8-sig").splitlines()
        rows = [(number, row) for number, row in enumerate(csv.reader(lines), start=1) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{source}: found no readable text ({error}), expected a CSV file") from error
    if len(rows) < 2:
        raise ValueError(f"{source}: found no requests, expected a header {','.join(AZURE_COLUMNS)} and rows")
    header = [cell.strip() for cell in rows[0][1]]
    for column in AZURE_COLUMNS:
        if column not in header:
            raise ValueError(f"{source}: line 1: found no column {column} in {','.join(header)[:80]!r}")
    when, prompt, decode = (header.index(column) for column in AZURE_COLUMNS)
    times, prompts, decodes = [], [], []
    for number, row in rows[1:]:
        place = f"{source}: line {number}"
        if len(row) != len(header):
            raise ValueError(f"{place}: found {len(row)} fields, expected {len(header)}")
        times.append(_time_stamp(row[when], place))
        prompts.append(_token_count(row[prompt], f"{place}: ContextTokens"))
        decodes.append(_token_count(row[decode], f"{place}: GeneratedTokens"))
        if len(times) > 1 and times[-1] < times[-2]:
            raise ValueError(f"{place}: TIMESTAMP: found {row[when]!r}, expected no earlier than before")
    # Whole seconds and the fraction are subtracted apart: together they exceed a float's digits.
    arrival_s = np.array([(whole - times[0][0]) + (part - times[0][1]) for whole, part in times])
    sums = {sha256: kind for kind, (_, sha256) in AZURE_FILES.items()}
    kind = sums.get(hashlib.sha256(data).hexdigest())
    name = f"Azure {kind} 2023" if kind else Path(source).name
    origin = f"published: {AZURE_TITLE}, {kind} (CC BY 4.0)" if kind else f"read from {Path(source).name}"
    return Trace(name, origin, arrival_s, np.array(prompts), np.array(decodes))


def _time_stamp(text, place):
    """(whole seconds, fraction) of a time stamp; the published ones have seven digits of a second."""
    try:
        whole, fraction = re.fullmatch(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d{1,9})?", text.strip()).groups()
        moment = datetime.fromisoformat(whole) - datetime(1970, 1, 1)
    except (AttributeError, ValueError):  # no match, or a 13th month
        raise ValueError(
            f"{place}: TIMESTAMP: found {text[:40]!r}, expected a time such as 2023-11-16 18:17:03.9799600"
        ) from None
    return moment.days * 86_400 + moment.seconds, float(fraction or 0)


def _token_count(text, place):
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        raise ValueError(f"{place}: found {text[:40]!r}, expected a whole number of tokens, 0 or more")
    return int(text)


def _knots(tokens):
    """Sorted value at index floor(level * n), for every level."""
    ordered = np.sort(tokens)
    return [int(ordered[min(int(level * len(ordered)), len(ordered) - 1)]) for level in KNOT_LEVELS]


def _lengths(knots, edges, band_shares, band, rng):
    """Token counts for the drawn bands: a level within the band, through the fitted quantiles."""
    below = np.concatenate([[0], np.cumsum(band_shares)])
    levels = below[band] + rng.random(len(band)) * band_shares[band]
    # Replacing levels by evenly spaced ones of the same order takes the sampling noise out of the quantiles.
    levels = (np.argsort(np.argsort(levels)) + 0.5) / len(levels)
    # The edges are knots too: half a token above, so that rounding keeps each count in its band.
    known = sorted(zip([*KNOT_LEVELS, *below[1:-1]], [*knots, *(edge + 0.5 for edge in edges)], strict=True))
    at, tokens = np.array(known).T
    return np.rint(np.exp(np.interp(levels, at, np.log(tokens)))).astype(int)


def _arrivals(fit, n, rng):
    """Arrival times in s: windows whose log rates wander, requests spread evenly by chance inside them."""
    window_s, memory = fit["window_s"], fit["memory"]
    steps = rng.standard_normal(max(2, math.ceil(n / fit["rate_per_s"] / window_s)))
    level = steps.copy()
    for i in range(1, len(level)):
        level[i] = memory * level[i - 1] + math.sqrt(1 - memory**2) * steps[i]
    level = (level - level.mean()) / level.std()
    rates = np.exp(fit["spread"] * level)
    window = np.repeat(np.arange(len(rates)), rng.multinomial(n, rates / rates.sum()))
    times = np.sort((window + rng.random(n)) * window_s)
    return times - times[0]
