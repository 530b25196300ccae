"""Commands that need no kernel: their output, and one clear line with exit status 2 on bad input."""
import pytest

from autograde.__main__ import main

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:17:03.9799600,{},{}\n"


def test_a_trace_is_shown_in_figures(tmp_path, capsys):
    path = tmp_path / "mine.csv"
    path.write_text(HEADER + "".join(ROW.format(*pair) for pair in [(2049, 256), (2048, 257), (3000, 300), (7, 8)]))
    assert main(["trace", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "mine.csv: 4 requests in 0.0 s (read from mine.csv)",
        "prompt tokens p50 / p90 / p99: 2,049 / 3,000 / 3,000",
        "generated tokens p50 / p90 / p99: 257 / 300 / 300",
        "prefill / decode / shared (prompt > 2048, generated > 256): 1 / 1 / 2",
    ]


@pytest.mark.parametrize(("text", "parts"), [
    (HEADER.replace("Generated", "") + ROW.format(1, 2), ("bad.csv", "line 1", "no column GeneratedTokens")),
    (HEADER + ROW.format(5, -3), ("bad.csv", "line 2", "GeneratedTokens", "'-3'", "0 or more")),
    (HEADER + ROW.format("many", 3), ("bad.csv", "line 2", "ContextTokens", "'many'")),
    ("", ("bad.csv", "no requests")),
    (None, ("bad.csv", "no such file")),
])
def test_a_bad_trace_is_named_with_its_field(tmp_path, capsys, text, parts):
    path = tmp_path / "bad.csv"
    if text is not None:
        path.write_text(text)
    assert main(["trace", str(path)]) == 2
    error = capsys.readouterr().err
    assert all(part in error for part in parts) and error.count("\n") == 1


def test_an_unknown_chapter_is_named_with_the_known_ones(capsys):
    assert main(["mutate", "77_nope"]) == 2
    error = capsys.readouterr().err
    assert "'77_nope'" in error and "39b_hetero_pd_and_serving_tiers" in error
