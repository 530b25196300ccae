"""Traces: the published figures, the loader's errors, the fallback, and the fit of the synthetic ones."""
import hashlib
import io
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from toolkit import traces
from toolkit.traces import AZURE_FITS, Trace, azure_trace, fit_azure, read_azure_csv, synthetic_azure

SHARED = Path(__file__).parents[3] / "shared" / "traces"
FILES = {"code": SHARED / "azure_2023_code.csv", "conversation": SHARED / "azure_2023_conv.csv"}
needs_files = pytest.mark.skipif(
    not all(path.is_file() for path in FILES.values()), reason="the real traces are not beside this checkout"
)
KINDS = sorted(FILES)
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROW = "2023-11-16 18:17:03.9799600,4808,10"
# Published figures, thresholds 2048 and 256: prompt and generated p50/p90/p99; prefill/decode/shared.
FIGURES = {
    "code": (3435.9, [1469, 5194, 7436], [13, 55, 252], [3274, 50, 5495]),
    "conversation": (3501.7, [1020, 2735, 4142], [129, 424, 601], [2681, 6509, 10176]),
}


def quantiles(values):
    ordered = sorted(values.tolist())
    return [ordered[int(p * len(ordered))] for p in (0.5, 0.9, 0.99)]


def class_counts(trace):
    long_prompt, long_decode = trace.prompt_tokens > 2048, trace.decode_tokens > 256
    prefill, decode = int(sum(long_prompt & ~long_decode)), int(sum(long_decode & ~long_prompt))
    return [prefill, decode, len(trace) - prefill - decode]


def dispersion(trace, window_s):
    counts = np.bincount((trace.arrival_s // window_s).astype(int))[:-1]
    return counts.var() / counts.mean()


@pytest.fixture
def online(monkeypatch):
    """Lets azure_trace try the network; gives a function that sets what urlopen answers."""
    monkeypatch.delenv("COURSE_OFFLINE", raising=False)
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)

    def answers(reply):
        asked = []

        def urlopen(url, timeout):
            asked.append(url)
            if isinstance(reply, Exception):
                raise reply
            return io.BytesIO(reply)

        monkeypatch.setattr(urllib.request, "urlopen", urlopen)
        return asked

    return answers


@needs_files
@pytest.mark.parametrize("kind", KINDS)
def test_published_figures_hold(kind):
    trace = azure_trace(kind, FILES[kind])
    span, prompt, decode, counts = FIGURES[kind]
    assert round(float(trace.arrival_s[-1]), 1) == span and trace.arrival_s[0] == 0
    assert quantiles(trace.prompt_tokens) == prompt
    assert quantiles(trace.decode_tokens) == decode
    assert class_counts(trace) == counts
    assert trace.origin == f"published: Azure LLM inference trace 2023, {kind} (CC BY 4.0)"


@needs_files
@pytest.mark.parametrize("kind", KINDS)
def test_constants_are_what_the_fit_gives(kind):
    assert fit_azure(read_azure_csv(FILES[kind]), AZURE_FITS[kind]["window_s"]) == AZURE_FITS[kind]


@needs_files
@pytest.mark.parametrize("kind", KINDS)
def test_synthetic_arrivals_are_as_bursty_as_the_real_ones(kind):
    real, made = read_azure_csv(FILES[kind]), synthetic_azure(kind)
    for window_s in (10, 60):
        assert 0.5 < dispersion(made, window_s) / dispersion(real, window_s) < 1.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [2023, 1])
def test_synthetic_matches_the_published_figures(kind, seed):
    trace = synthetic_azure(kind, seed=seed)
    span, prompt, decode, counts = FIGURES[kind]
    assert len(trace) == sum(counts)
    assert trace.arrival_s[-1] == pytest.approx(span, rel=0.03)
    assert trace.arrival_s[0] == 0 and np.all(np.diff(trace.arrival_s) >= 0)
    assert quantiles(trace.prompt_tokens) == pytest.approx(prompt, rel=0.05)
    assert quantiles(trace.decode_tokens) == pytest.approx(decode, rel=0.05)
    shares = [100 * count / len(trace) for count in class_counts(trace)]
    assert shares == pytest.approx([100 * count / sum(counts) for count in counts], abs=2)


def test_synthetic_is_set_by_its_seed():
    one, same, other = (synthetic_azure("code", n=500, seed=seed) for seed in (5, 5, 6))
    assert one.requests() == same.requests() and one.arrival_s.tolist() == same.arrival_s.tolist()
    assert one.requests() != other.requests()
    assert len(one) == 500 and "synthetic" in one.origin


def test_requests_are_plain_ints():
    trace = synthetic_azure("code", n=10)
    assert len(trace.requests()) == 10 and len(trace.requests(limit=3)) == 3
    assert trace.requests(limit=3) == trace.requests()[:3]
    assert [type(value) for value in trace.requests()[0].values()] == [int, int]
    assert list(trace.requests()[0]) == ["prompt_tokens", "decode_tokens"]


def test_trace_wants_equal_lengths():
    with pytest.raises(ValueError, match=r"\[2, 1, 2\]"):
        Trace("x", "made up", np.zeros(2), np.ones(1), np.ones(2))


def test_read_keeps_all_digits_of_the_time(tmp_path):
    path = tmp_path / "two.csv"
    # Windows line ends, a byte order mark, columns in another order and blank lines are no errors.
    path.write_bytes(
        b"\xef\xbb\xbfGeneratedTokens,TIMESTAMP,ContextTokens\r\n"
        b"10,2023-11-16 23:59:59.9999999,4808\r\n\r\n8,2023-11-17 00:00:00.0000001,0\r\n"
    )
    trace = azure_trace("code", path)
    assert trace.arrival_s.tolist() == pytest.approx([0, 2e-7], abs=1e-12)
    assert trace.requests() == [
        {"prompt_tokens": 4808, "decode_tokens": 10},
        {"prompt_tokens": 0, "decode_tokens": 8},
    ]
    assert (trace.name, trace.origin) == ("two.csv", "read from two.csv")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["no requests", HEADER]),
        (HEADER + "\n", ["no requests"]),
        (f"TIMESTAMP,ContextTokens\n{ROW}\n", ["line 1", "GeneratedTokens"]),
        (f"{HEADER}\n{ROW}\n2023-11-16 18:17:04,-3,10\n", ["line 3", "ContextTokens", "'-3'"]),
        (f"{HEADER}\n{ROW}\n\n2023-11-16 18:17:04,3,1.5\n", ["line 4", "GeneratedTokens", "'1.5'"]),
        (f"{HEADER}\n2023-11-16 18:17:04,3,\n", ["line 2", "GeneratedTokens", "''"]),
        (f"{HEADER}\n2023-11-16 18:17:04,3\n", ["line 2", "2 fields", "expected 3"]),
        (f"{HEADER}\n{ROW}\n2023-13-16 18:17:04,3,1\n", ["line 3", "TIMESTAMP", "'2023-13-16 18:17:04'"]),
        (f"{HEADER}\nyesterday,3,1\n", ["line 2", "TIMESTAMP", "'yesterday'"]),
        (f"{HEADER}\n{ROW}\n2023-11-16 18:17:03.9799599,3,1\n", ["line 3", "TIMESTAMP", "no earlier"]),
        ("\udcff\udcfe", ["no readable text"]),
    ],
)
def test_bad_files_give_one_line_with_file_and_field(tmp_path, text, said):
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError) as caught:
        azure_trace("code", path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    assert [part for part in said if part not in message] == []


def test_missing_file_is_an_error_with_its_path(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.csv"):
        azure_trace("conversation", tmp_path / "nowhere.csv")


def test_unknown_kind_names_the_kinds():
    for function in (azure_trace, synthetic_azure):
        with pytest.raises(ValueError, match="'conv'.*code, conversation"):
            function("conv")


def test_published_file_is_used_when_its_checksum_is_right(online, monkeypatch):
    data = f"{HEADER}\n{ROW}\n".encode()
    monkeypatch.setitem(traces.AZURE_FILES, "code", ("x.csv", hashlib.sha256(data).hexdigest()))
    asked = online(data)
    trace = azure_trace("code")
    assert asked == ["https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data/x.csv"]
    assert trace.requests() == [{"prompt_tokens": 4808, "decode_tokens": 10}]
    assert trace.origin.startswith("published")


@pytest.mark.parametrize(
    ("reply", "reason"), [(f"{HEADER}\n{ROW}\n".encode(), "checksum"), (OSError("no route"), "not reachable")]
)
def test_falls_back_to_synthetic_and_says_why(online, reply, reason):
    asked = online(reply)
    trace = azure_trace("conversation")
    assert len(asked) == 1
    assert trace.origin.startswith("synthetic") and reason in trace.origin
    assert trace.requests(5) == synthetic_azure("conversation").requests(5)


def test_a_reply_that_never_ends_is_given_up(online, monkeypatch):
    asked = online(b"")
    monkeypatch.setattr(traces, "DOWNLOAD_SECONDS", 0)
    monkeypatch.setattr(traces.threading, "Thread", SilentThread)
    assert "not reachable" in azure_trace("code").origin and asked == []


class SilentThread:
    def __init__(self, target, daemon):
        assert daemon  # else the kernel could not end while it waits

    def start(self):
        pass

    def join(self, timeout):
        assert timeout == 0


@pytest.mark.parametrize("name", ["COURSE_OFFLINE", "NBGRADER_EXECUTION"])
def test_offline_settings_keep_the_network_out(online, monkeypatch, name):
    asked = online(OSError("must not be asked"))
    monkeypatch.setenv(name, "1")
    assert name in azure_trace("code").origin and asked == []
