"""What the notebook says around a measurement, above all where something is missing."""
import json
import sys

import pytest

from toolkit import experiments
from toolkit.costs import Recompute
from toolkit.decoder import Decoder, DecoderShape, random_tokens
from toolkit.experiments import (
    can_measure,
    handoff_table,
    kv_heads_table,
    measure_cuda,
    measured_sources,
    progress_bar,
    read_profile,
    recorded_sources,
    sweep_report,
    time_routes,
    write_profile,
)
from toolkit.handoff import BUGS, verify_handoff
from toolkit.measure import SWEEP_TOKENS, Measurement, Series, sweep

SMALL = DecoderShape(layers=2, d=32, heads=4, kv_heads=2, head_dim=8, ff=48, vocab=50)
TRUE = Recompute(2.0, 0.1, 5e-5, SMALL.kv_bytes())


def measurement(sizes=SWEEP_TOKENS, wall=1.0, stopped=False, shape=SMALL):
    series = Series("thread_cpu", {n: [TRUE.ms(n)] for n in sizes}, {n: [wall * TRUE.ms(n)] for n in sizes})
    copies = Series("thread_cpu", {n: [0.01 * n] for n in sizes}, {n: [0.01 * n] for n in sizes})
    transfer = {"copy in memory": copies} if sizes else {}
    return Measurement("cpu", shape, "float32", {"threads": 1}, series, transfer, stopped)


def nothing(share):
    pass


@pytest.fixture
def displays(monkeypatch):
    """What a cell displays and what takes its place."""
    seen = []

    class Handle:
        def update(self, data, raw):
            seen.append(data)

    def display(shown, raw, display_id):
        seen.append(shown)
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    return seen


def test_nothing_is_measured_while_grading(monkeypatch, capsys):
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    assert can_measure() and capsys.readouterr().out == ""
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    assert not can_measure() and capsys.readouterr().out.count("\n") == 1


def test_without_torch_one_line_says_so(monkeypatch, capsys):
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not can_measure()
    line = capsys.readouterr().out
    assert "needs torch" in line and line.count("\n") == 1


def test_a_bar_moves_and_leaves_its_time(displays):
    with progress_bar("prefill") as progress:
        progress(0.256)
        bar = displays[0].children[1]
        assert bar.value == 25 and "interrupt button" in displays[0].children[0].value
    assert len(displays) == 2 and displays[-1]["text/plain"].endswith(" s")


def test_without_ipywidgets_a_text_line_moves(displays, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(KeyboardInterrupt), progress_bar("prefill") as progress:
        for share in (0.101, 0.102, 0.2):
            progress(share)
        raise KeyboardInterrupt
    texts = [data["text/plain"] for data in displays]
    assert [text.split(" · ")[0] for text in texts] == ["prefill", "prefill: 10 %", "prefill: 20 %", "prefill: 0.0 s"]


def test_the_table_of_bugs_says_which_check_catches_what():
    decoder = Decoder()
    prompt = random_tokens(96)
    table = handoff_table({bug or "right": verify_handoff(decoder, prompt, bug=bug) for bug in (None, *BUGS)})
    words = [line.split()[-5:] for line in table.split("\n")[1:]]
    assert [word[0] for word in words] == ["equal", "DIFFER", "equal", "DIFFER", "DIFFER", "DIFFER"]
    assert [word[3] for word in words] == ["none", "payload", "logits", "payload", "payload", "payload"]
    assert words[5][2] == "equal"  # permuted slots change no token


def test_a_report_shows_fit_held_out_error_and_warning():
    quiet = sweep_report(measurement())
    assert "recompute = 2 + 0.1 n + 5e-05 n^2 ms" in quiet and "largest 0.0%" in quiet and "a quiet machine" in quiet
    assert quiet.count("held out\n") == 3  # 32, 128 and 512
    assert "highest at n = 200," in quiet  # sqrt(2 / 5e-5)
    busy = sweep_report(measurement(wall=1.5))
    assert "wall time is 1.50 times CPU time" in busy and "quiet" not in busy


@pytest.mark.parametrize(("sizes", "says"), [((), "0 sizes"), ((32, 64), "2 sizes")])
def test_a_sweep_that_was_stopped_early_is_said_and_makes_no_curve(sizes, says):
    stopped = measurement(sizes, stopped=True)
    report = sweep_report(stopped)
    assert f"stopped early, with results for {says}" in report and "too few sizes for a fit" in report
    assert measured_sources([stopped, measurement()])[0].tokens == SWEEP_TOKENS
    assert "not measured" in kv_heads_table([stopped])


def test_kv_heads_stand_beside_their_least_recompute_time_and_crossing():
    one = measurement(shape=DecoderShape(kv_heads=1))
    one.recompute.ms[1024].append(500.0)  # a disturbed run
    place, _, row = kv_heads_table([one]).split("\n")
    # 2 + 0.1·1024 + 5e-5·1024² = 156.83 ms for 1,024 tokens of 1,024 bytes
    assert place == "at 1,024 prompt tokens"
    assert row.split() == ["1", "1,024", "156.83", f"{1024 * 1024 * 8 / 156.8288e6:.3f}"]


def test_a_profile_is_kept_where_no_file_can_be_written(tmp_path, capsys):
    path = str(tmp_path / "absent" / "profile.json")
    text = write_profile(path, measurement())
    assert "kept in memory" in capsys.readouterr().out
    assert read_profile(path, text, SMALL).measurement == measurement()
    path = str(tmp_path / "profile.json")
    assert write_profile(path, measurement()) == (tmp_path / "profile.json").read_text(encoding="utf-8")
    assert read_profile(path, "", SMALL).measurement == measurement()


def test_a_wrong_profile_is_refused_in_a_line(tmp_path, capsys):
    text = write_profile(str(tmp_path / "profile.json"), measurement())
    assert read_profile("", text.replace('"unit": "ms"', '"unit": "s"')) is None
    assert "recompute.unit: found 's', expected 'ms'" in capsys.readouterr().out
    assert read_profile(str(tmp_path / "profile.json"), "", DecoderShape()) is None
    assert write_profile(str(tmp_path / "empty.json"), measurement(())) == "" and not (tmp_path / "empty.json").exists()


def test_recorded_profiles_are_labelled_with_their_device(tmp_path):
    text = write_profile(str(tmp_path / "profile.json"), measurement())
    profile = read_profile("", text.replace(json.dumps(json.loads(text)["provenance"]["device_name"]), '"Other CPU"'))
    [source] = recorded_sources([profile], "cpu")
    assert (source.provenance, source.origin) == ("recorded", "Other CPU") and recorded_sources([profile], "cuda") == []


def test_routes_through_another_process_and_a_paced_link(capsys):
    found = sweep(SMALL, sizes=(64, 256), runs=1)
    time_routes(found, 0.5, nothing, tokens=256)
    said = capsys.readouterr().out
    assert said.count("every bit arrived") == 2
    assert set(found.transfer) == {"copy in memory", "paced link 0.5 Gbps", "gloo, loopback", "shared memory"}
    paced = found.transfer["paced link 0.5 Gbps"].best_ms()
    assert paced[256] >= 256 * SMALL.kv_bytes() * 8 / 0.5e6 and f"{paced[256]:9.2f}" in said


def test_a_machine_without_gloo_and_a_stop_are_said(monkeypatch, capsys):
    class NoPeer:
        def __init__(self):
            raise RuntimeError("this torch has no gloo")

    monkeypatch.setattr(experiments, "Peer", NoPeer)
    found = sweep(SMALL, sizes=(64,), runs=1)
    time_routes(found, 50, nothing, tokens=64)
    said = capsys.readouterr().out
    assert "use the formula" in said and "this torch has no gloo" in said and list(found.transfer) == ["copy in memory"]

    def stop(share):
        raise KeyboardInterrupt

    time_routes(found, 0.5, stop, tokens=64)
    assert "stopped early" in capsys.readouterr().out


def test_a_gpu_that_fails_is_said(monkeypatch, capsys):
    def fails():
        raise RuntimeError("out of memory\nmore")

    monkeypatch.setattr(experiments, "CudaDevice", fails)
    assert measure_cuda(nothing) == []
    assert capsys.readouterr().out.endswith("failed: out of memory\n")
