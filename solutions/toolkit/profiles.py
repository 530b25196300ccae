"""Measurements as JSON profiles (`kv-profile/1`): all raw samples, and where they come from.

A profile that lacks a field, uses another unit or belongs to another shape is refused by that field's name.
"""
import hashlib
import inspect
import json
import math
import os
import pathlib
import platform
import sys
import textwrap
from dataclasses import asdict, fields
from datetime import datetime, timezone
from typing import NamedTuple

from toolkit.costs import DTYPE_BYTES
from toolkit.decoder import Decoder, DecoderShape, apply_rope, rms_norm
from toolkit.handoff import copy_in_memory, device_routes
from toolkit.measure import Measurement, Series, cpu_timed, interleave, sweep, sweep_cuda

PROFILE_SCHEMA = "kv-profile/1"
PROFILE_UNIT = "ms"
PROFILE_CLOCKS = ("thread_cpu", "cuda_event", "wall")
PROFILE_FACTS = {  # device -> what its provenance must say; "unknown" is an answer, silence is not
    "cpu": (
        "utc", "device_name", "os", "python", "torch", "code_sha256",
        "threads", "instruction_set", "load_average",
    ),
    "cuda": (
        "utc", "device_name", "os", "python", "torch", "code_sha256",
        "compute_capability", "memory_gb", "driver", "cuda", "clocks", "max_clocks", "power_limit",
        "pcie_generation", "pcie_width",
    ),
}
# Functions whose source a profile's sha256 covers: what is measured, and how.
_MEASURING = (
    Decoder.__init__, Decoder._run, Decoder._attention, rms_norm, apply_rope,
    copy_in_memory, device_routes, cpu_timed, interleave, sweep, sweep_cuda,
)


class ProfileError(ValueError):
    """A profile that is refused; the message names source and field, what was found and expected."""


class Profile(NamedTuple):
    """A measurement and its provenance, {fact: text or number}."""

    measurement: Measurement
    provenance: dict


def profile_facts(measurement, gpu=None):
    """Where a measurement just taken here comes from; `gpu` is the CudaDevice of a CUDA measurement."""
    import torch

    facts = {
        "utc": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "os": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "code_sha256": _code_sha256(),
    }
    if measurement.device == "cuda":
        return {**facts, **gpu.facts()}
    return {
        **facts,
        "device_name": _cpu_name(),
        "threads": measurement.settings["threads"],
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        # Of the last minute, this process among it; not known on Windows.
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else "unknown",
    }


def profile_text(measurement, facts):
    """The profile as JSON text, one line a series. ProfileError when it would be refused on reading."""
    head = {
        "schema": PROFILE_SCHEMA,
        "device": measurement.device,
        "dtype": measurement.dtype,
        "kv_bytes_per_token": measurement.kv_bytes,
        "shape": asdict(measurement.shape),
        "settings": measurement.settings,
        "stopped": measurement.stopped,
        "provenance": facts,
        "recompute": _written(measurement.recompute),
    }
    routes = {name: _written(series) for name, series in measurement.transfer.items()}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(series)}" for name, series in routes.items())
    text = "{\n" + ",\n".join([*lines, f' "transfer": {{\n{inner}\n }}']) + "\n}\n"
    parse_profile(text, "this measurement")
    return text


def save_profile(path, measurement, facts):
    """Write the profile to `path`. ProfileError, and nothing written, when it would be refused on reading."""
    pathlib.Path(path).write_text(profile_text(measurement, facts), encoding="utf-8")


def load_profile(path, shape=None):
    """The Profile in a file; as `parse_profile`, and OSError when the file cannot be read."""
    return parse_profile(pathlib.Path(path).read_bytes(), str(path), shape)


def parse_profile(text, source="profile", shape=None):
    """The Profile in JSON text or bytes. With `shape` (a DecoderShape), one of any other shape is refused.

    Raises ProfileError.
    """
    try:
        whole = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{source}: found no JSON ({error}), expected a {PROFILE_SCHEMA} profile") from error
    root = _Node(whole, source, "")
    root.expect_equal("schema", PROFILE_SCHEMA)
    device = root.one_of("device", PROFILE_FACTS)
    dtype = root.one_of("dtype", DTYPE_BYTES)
    found_shape = _read_shape(root.node("shape"), shape)
    root.expect_equal("kv_bytes_per_token", found_shape.kv_bytes(dtype))
    facts = root.node("provenance")
    for name in PROFILE_FACTS[device]:
        facts.text_or_number(name)
    routes = root.node("transfer")
    measurement = Measurement(
        device, found_shape, dtype,
        root.node("settings").value,
        _read_series(root.node("recompute")),
        {name: _read_series(routes.node(name)) for name in routes.value},
        root.truth("stopped"),
    )
    return Profile(measurement, facts.value)


class _Node:
    """A JSON object with the way to it, so that every refusal can name its field."""

    def __init__(self, value, source, way):
        self.value, self.source, self.way = value, source, way
        if not isinstance(value, dict):
            raise ProfileError(f"{source}: {way or 'whole text'}: found {_brief(value)}, expected an object")

    def refuse(self, name, expected):
        found = f"found {_brief(self.value[name])}, expected {expected}" if name in self.value else "missing"
        raise ProfileError(f"{self.source}: {self.way}{name}: {found}")

    def get(self, name):
        if name not in self.value:
            self.refuse(name, "")
        return self.value[name]

    def node(self, name):
        if not isinstance(self.get(name), dict):
            self.refuse(name, "an object")
        return _Node(self.value[name], self.source, f"{self.way}{name}.")

    def expect_equal(self, name, expected):
        value = self.get(name)
        if type(value) is not type(expected) or value != expected:
            self.refuse(name, repr(expected))

    def one_of(self, name, choices):
        value = self.get(name)
        if not isinstance(value, str) or value not in choices:
            self.refuse(name, "one of " + ", ".join(choices))
        return value

    def whole_number(self, name):
        value = self.get(name)
        if type(value) is not int or value < 1:
            self.refuse(name, "a whole number of at least 1")
        return value

    def truth(self, name):
        if type(self.get(name)) is not bool:
            self.refuse(name, "true or false")
        return self.value[name]

    def text_or_number(self, name):
        value = self.get(name)
        if value == "" or type(value) not in (str, int, float):
            self.refuse(name, "a text or a number ('unknown' if nobody knows)")

    def times(self, name):
        values = self.get(name)
        right = isinstance(values, list) and values and all(type(v) in (int, float) and v >= 0 for v in values)
        if not right or not all(map(math.isfinite, values)):
            self.refuse(name, f"a list of times in {PROFILE_UNIT}, not empty and none below 0")
        return [float(value) for value in values]


def _read_shape(node, wanted):
    names = [one.name for one in fields(DecoderShape)]
    sizes = {name: node.whole_number(name) for name in names}
    if wanted is not None:
        for name in names:
            node.expect_equal(name, getattr(wanted, name))
    try:
        return DecoderShape(**sizes)
    except ValueError as error:
        raise ProfileError(f"{node.source}: {node.way}{error}") from error


def _read_series(node):
    node.expect_equal("unit", PROFILE_UNIT)
    series = Series(node.one_of("clock", PROFILE_CLOCKS))
    samples = node.get("samples")
    if not isinstance(samples, list) or not samples:
        node.refuse("samples", "a list of at least one size")
    for i, value in enumerate(samples):
        sample = _Node(value, node.source, f"{node.way}samples[{i}].")
        tokens = sample.whole_number("tokens")
        if tokens in series.ms:
            sample.refuse("tokens", "every size once")
        series.ms[tokens] = sample.times("ms")
        if min(series.ms[tokens]) == 0:
            sample.refuse("ms", "times above 0")
        if series.clock == "thread_cpu":
            series.wall_ms[tokens] = sample.times("wall_ms")
            if len(series.wall_ms[tokens]) != len(series.ms[tokens]):
                sample.refuse("wall_ms", f"{len(series.ms[tokens])} times, as many as ms has")
    return series


def _written(series):
    samples = []
    for tokens, ms in series.ms.items():
        sample = {"tokens": tokens, "ms": ms}
        if series.clock == "thread_cpu":
            sample["wall_ms"] = series.wall_ms[tokens]
        samples.append(sample)
    return {"unit": PROFILE_UNIT, "clock": series.clock, "samples": samples}


def _no_constant(text):
    raise ValueError(f"{text} is no JSON number")


def _brief(value):
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _code_sha256():
    try:
        # Inlined in a notebook the same source may stand further to the right.
        sources = [textwrap.dedent(inspect.getsource(function)) for function in _MEASURING]
    except (OSError, TypeError):  # run from text that nobody kept
        return "unknown"
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()


def _cpu_name():
    if sys.platform == "linux":
        try:
            lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        except OSError:
            lines = []
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip() or "unknown"
    return platform.processor() or platform.machine() or "unknown"
