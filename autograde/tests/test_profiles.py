"""Profiles keep all samples, say where they come from, and are refused by the name of the field that is wrong."""
import json
import re

import pytest

from autograde.inline import inlined
from toolkit.decoder import DecoderShape
from toolkit.measure import Measurement, Series, sweep
from toolkit.profiles import (
    PROFILE_FACTS,
    ProfileError,
    load_profile,
    parse_profile,
    profile_facts,
    profile_text,
    save_profile,
)

SMALL = DecoderShape(layers=2, d=32, heads=4, kv_heads=2, head_dim=8, ff=48, vocab=50)


class Gpu:
    def facts(self):
        names = set(PROFILE_FACTS["cuda"]) - {"utc", "os", "python", "torch", "code_sha256"}
        return {name: "made up for a test" for name in names}


def cpu_measurement():
    recompute = Series("thread_cpu", {32: [1.5, 1.25], 64: [2.5, 2.0]}, {32: [1.5, 1.5], 64: [2.5, 2.25]})
    copies = Series("wall", {32: [0.01], 64: [0.02]})
    settings = {"threads": 1, "warm_ups": 1, "runs": 2}
    return Measurement("cpu", SMALL, "float32", settings, recompute, {"copy in memory": copies})


@pytest.fixture(scope="module")
def text():
    found = cpu_measurement()
    return profile_text(found, profile_facts(found))


def test_profile_of_a_real_sweep_comes_back_whole(tmp_path):
    found = sweep(SMALL, sizes=(16, 32), runs=2)
    facts = profile_facts(found)
    save_profile(tmp_path / "cpu.json", found, facts)
    loaded = load_profile(tmp_path / "cpu.json", SMALL)
    assert loaded.measurement == found and loaded.provenance == facts
    assert loaded.measurement.crossing_gbps(32) == found.crossing_gbps(32)
    assert set(facts) == set(PROFILE_FACTS["cpu"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", facts["utc"])
    assert re.fullmatch(r"[0-9a-f]{64}", facts["code_sha256"]) and facts["threads"] == 1


def test_cuda_profile_needs_the_gpus_facts():
    series = Series("cuda_event", {32: [1.0]})
    found = Measurement("cuda", SMALL, "float16", {"tf32": False}, series, {"pinned host": series})
    facts = profile_facts(found, Gpu())
    assert parse_profile(profile_text(found, facts)).measurement == found
    assert set(facts) == set(PROFILE_FACTS["cuda"])
    for name in ("driver", "pcie_width", "clocks"):
        with pytest.raises(ProfileError, match=f"provenance.{name}: missing"):
            profile_text(found, {key: value for key, value in facts.items() if key != name})


def test_text_is_json_with_units_and_raw_samples(text):
    whole = json.loads(text)
    assert whole["schema"] == "kv-profile/1" and whole["kv_bytes_per_token"] == 2 * 2 * 2 * 8 * 4
    assert whole["recompute"]["unit"] == "ms"
    assert whole["recompute"]["samples"][0] == {"tokens": 32, "ms": [1.5, 1.25], "wall_ms": [1.5, 1.5]}


def test_measuring_works_from_inlined_source():
    """In a learner's notebook there is no toolkit to import, and no file to take a source's sha256 from."""
    namespace = {"__name__": "notebook"}
    exec(inlined({"measure": ["sweep"], "profiles": ["profile_facts", "profile_text", "parse_profile"]}), namespace)
    found = namespace["sweep"](namespace["DecoderShape"](layers=1, d=16, heads=2, kv_heads=1, head_dim=8), (8,), 2)
    facts = namespace["profile_facts"](found)
    assert facts["code_sha256"] == "unknown"
    assert namespace["parse_profile"](namespace["profile_text"](found, facts)) == (found, facts)


FIELDS = [
    "schema", "device", "dtype", "kv_bytes_per_token", "shape", "settings", "stopped", "provenance", "recompute",
    "transfer", "shape.kv_heads", "shape.vocab", "recompute.unit", "recompute.clock", "recompute.samples",
    "recompute.samples[1].tokens", "recompute.samples[0].ms", "recompute.samples[1].wall_ms",
    "transfer.copy in memory.unit", *(f"provenance.{name}" for name in PROFILE_FACTS["cpu"]),
]
REMOVE = object()


def changed(text, field, value):
    whole = json.loads(text)
    *way, last = re.findall(r"\d+(?=\])|[^.\[\]]+", field)
    node = whole
    for step in way:
        node = node[int(step)] if isinstance(node, list) else node[step]
    if value is REMOVE:
        del node[last]
    else:
        node[last] = value
    return json.dumps(whole)


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_is_refused_by_name(text, field):
    with pytest.raises(ProfileError, match=re.escape(f"here: {field}: missing")):
        parse_profile(changed(text, field, REMOVE), "here")


@pytest.mark.parametrize("field, value, expected", [
    ("schema", "kv-profile/2", "found 'kv-profile/2', expected 'kv-profile/1'"),
    ("recompute.unit", "s", "found 's', expected 'ms'"),
    ("transfer.copy in memory.unit", "us", "found 'us', expected 'ms'"),
    ("kv_bytes_per_token", 512, "found 512, expected 256"),
    ("kv_bytes_per_token", 256.0, "found 256.0, expected 256"),
    ("dtype", "int4", "expected one of float32"),
    ("dtype", ["float32"], "expected one of float32"),
    ("device", "tpu", "expected one of cpu, cuda"),
    ("shape", 3, "expected an object"),
    ("shape.layers", "2", "expected a whole number"),
    ("shape.kv_heads", 3, "expected a divisor of heads, 4"),
    ("stopped", 0, "expected true or false"),
    ("provenance.utc", "", "expected a text or a number"),
    ("provenance.threads", None, "expected a text or a number"),
    ("recompute.clock", "sundial", "expected one of thread_cpu"),
    ("recompute.samples", [], "at least one size"),
    ("recompute.samples[1].tokens", 32, "expected every size once"),
    ("recompute.samples[0].ms", [], "a list of times in ms"),
    ("recompute.samples[0].ms", [1.5, -1], "a list of times in ms"),
    ("recompute.samples[0].ms", [True], "a list of times in ms"),
    ("recompute.samples[0].ms", [1.5, 0], "expected times above 0"),
    ("recompute.samples[0].wall_ms", [1.5], "expected 2 times"),
])
def test_a_wrong_field_is_refused_by_name(text, field, value, expected):
    with pytest.raises(ProfileError) as refused:
        parse_profile(changed(text, field, value), "here")
    assert str(refused.value).startswith(f"here: {field}: ") and expected in str(refused.value)


def test_another_shape_is_refused_by_the_size_that_differs(text):
    parse_profile(text, shape=SMALL)
    with pytest.raises(ProfileError, match="shape.kv_heads: found 2, expected 4"):
        parse_profile(text, shape=DecoderShape(layers=2, d=32, heads=4, kv_heads=4, head_dim=8, ff=48, vocab=50))
    with pytest.raises(ProfileError, match="shape.layers: found 2, expected 4"):
        parse_profile(text, shape=DecoderShape())


@pytest.mark.parametrize("content", ["", "no json", "[]", '"text"', b"\xff\xfe", "[" * 100_000])
def test_what_is_no_profile_is_refused(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ProfileError, match="x.json: "):
        load_profile(path)


def test_numbers_that_are_none_are_refused(text):
    with pytest.raises(ProfileError, match="NaN is no JSON number"):
        parse_profile(text.replace("1.25", "NaN"))
    with pytest.raises(ProfileError, match=r"samples\[0\].ms"):
        parse_profile(text.replace("1.25", "1e999"))


def test_nothing_unreadable_is_written(tmp_path):
    empty = Measurement("cpu", SMALL, "float32", {"threads": 1}, Series("thread_cpu"), {}, stopped=True)
    with pytest.raises(ProfileError, match="this measurement: recompute.samples: found"):
        save_profile(tmp_path / "x.json", empty, profile_facts(empty))
    assert not (tmp_path / "x.json").exists()
