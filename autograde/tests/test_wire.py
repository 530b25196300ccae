"""What crosses the wall: plain data unchanged, everything else harmless, hostile bytes refused."""
import base64
import enum
import json
import math
import sys
import time
from collections import OrderedDict, namedtuple

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autograde import wire

KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
SCALARS = KEYS | st.floats() | st.integers(-10**700, 10**700) | st.text(st.characters(codec=None))
PLAIN = st.recursive(
    SCALARS | st.frozensets(KEYS),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS | st.tuples(KEYS), inner) | st.lists(inner).map(tuple),
    max_leaves=20,
)


def same(a, b):
    """Equal in types, order of keys, signs of zero and all; nan equals nan, whatever its sign: JSON writes none."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a != a and b != b or a == b and math.copysign(1, a) == math.copysign(1, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    return a == b


@given(PLAIN)
@example(-math.nan)
def test_plain_data_arrives_unchanged(value):
    line = wire.encode(value)
    assert "\n" not in line and "\t" not in line and line.isascii()
    assert same(wire.decode(line.encode()), value)


def test_awkward_data_arrives_unchanged():
    for value in ["\ud800", {"!": 1}, {"!": ["tuple", []]}, {1: 2, "1": 3}, 10**5000, -(10**5000)]:
        assert same(wire.flat(value), value)


class Liar(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__

    def __str__(self):
        return "other"


class LyingDict(dict):
    def items(self):
        return [("mode", "right")]

    def __iter__(self):
        return iter(["mode"])


Level = enum.IntEnum("Level", "LOW HIGH")
Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(("value", "plain"), [
    (Liar("mine"), "mine"), (LyingDict(wrong=1), {"wrong": 1}), (Level.HIGH, 2), (Pair(1, 2), (1, 2)),
    (OrderedDict(b=1, a=2), {"b": 1, "a": 2}), ({Liar("k"): [Liar("v")]}, {"k": ["v"]}),
    (type("F", (float,), {"__eq__": lambda self, other: True})(-0.0), -0.0),
])
def test_subclasses_become_their_plain_type(value, plain):
    assert same(wire.flat(value), plain)


def test_other_values_equal_nothing_and_keep_their_name():
    class Always:
        def __eq__(self, other):
            return True

    (got,) = wire.flat([Always()])
    assert got.type_name == "Always" and got != 1 and got != got and not got == "anything"
    assert wire.flat(range(3)).type_name == "range"
    assert repr(wire.flat(range(3))) == "range(0, 3)"


def test_a_repr_that_fails_or_floods_does_no_harm():
    class Bad:
        def __repr__(self):
            raise ValueError

    class Long:
        def __repr__(self):
            return "x" * 10**6

    assert repr(wire.flat(Bad())) == "<Bad>"
    assert len(repr(wire.flat(Long()))) == wire.MAX_SHOWN


@pytest.mark.parametrize("array", [
    numpy.arange(6.0).reshape(2, 3), numpy.array([], "int8"), numpy.array(True), numpy.float32(1.5), numpy.int64(-3),
    numpy.arange(3, dtype=">i4"), numpy.arange(8)[::2],
], ids=str)
def test_numpy_arrays_arrive_by_dtype_shape_and_bytes(array):
    described, real = wire.flat(array), wire.decode(wire.encode(array), arrays=True)
    assert type(described).__module__ == "numpy" and repr(described) == repr(array) and described != described
    assert type(real) is type(array) and numpy.array_equal(real, array) and real.shape == array.shape
    assert real.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")


@pytest.mark.slow
def test_torch_tensors_arrive_by_dtype_shape_and_bytes():
    torch = pytest.importorskip("torch")
    tensors = [torch.arange(6.0).reshape(2, 3).T, torch.zeros(0, 2), torch.tensor(True),
               torch.ones(2, dtype=torch.bfloat16), torch.tensor(2.5, requires_grad=True), torch.tensor([1 + 2j])]
    for tensor in tensors:
        real = wire.decode(wire.encode([tensor]), arrays=True)[0]
        assert real.dtype == tensor.dtype and real.shape == tensor.shape and torch.equal(real, tensor.detach())
        assert type(wire.flat(tensor)).__module__ == "torch"


def test_arrays_of_objects_do_not_cross():
    assert wire.flat(numpy.array([object()])).type_name == "ndarray"
    assert isinstance(wire.flat(numpy.array(["a"])), wire.Opaque)


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


def cyclic():
    value = {}
    value["me"] = value
    return value


def laughs():
    value = ["ha"] * 10
    for _ in range(9):
        value = [value] * 10
    return value


@pytest.mark.parametrize("value", [
    deep(100), cyclic(), laughs(), "x" * (wire.MAX_BYTES + 1), [0] * (wire.MAX_NODES + 1), b"x" * wire.MAX_BYTES,
    numpy.zeros(wire.MAX_BYTES),
], ids=["deep", "cyclic", "laughs", "long text", "long list", "long bytes", "long array"])
def test_too_large_or_too_deep_is_refused_at_once(value):
    start = time.process_time()
    with pytest.raises(wire.WireError):
        wire.encode(value)
    assert time.process_time() - start < 2


def test_the_deepest_that_is_sent_is_also_read():
    value = 1
    for index in range(wire.MAX_DEPTH):
        value = {(index,): value} if index % 2 else (value,)
        if index > wire.MAX_DEPTH - 3:
            break
    line = wire.encode(value)
    assert wire.encode(wire.decode(line)) == line


HOSTILE = {
    "empty": b"", "no json": b"\xff\xfe{", "half": b'{"a": [1', "two values": b"1 2", "deep lists": b"[" * 10**6,
    "deep balanced": b"[" * 5000 + b"]" * 5000, "deep objects": b'{"a":' * 10**5, "same key twice": b'{"a": 1, "a": 2}',
    "huge integer": b"9" * 10**6, "huge hexadecimal": b'{"!": ["int", "0xg"]}', "not ascii": '"中"'.encode(),
    "unknown tag": b'{"!": ["pickle", "gASVJAAA"]}', "tag of another type": b'{"!": 5}', "empty tag": b'{"!": []}',
    "unhashable tag": b'{"!": [[1]]}', "tag beside keys": b'{"!": ["tuple", []], "a": 1}',
    "malformed tuple": b'{"!": ["tuple", 5]}', "unhashable key": b'{"!": ["dict", [[[1], 2]]]}',
    "unhashable item": b'{"!": ["set", [[1]]]}', "half a pair": b'{"!": ["dict", [[1]]]}',
    "key twice in pairs": b'{"!": ["dict", [[1, 2], [1, 3]]]}', "no base64": b'{"!": ["bytes", "?"]}',
    "too long": b'"' + b"x" * wire.MAX_BYTES + b'"',
    "shape too large": b'{"!": ["numpy", "int8", [4294967296, 4294967296], "", "", false]}',
    "negative shape": b'{"!": ["numpy", "int8", [-1, -1], "AA==", "", false]}',
    "boolean shape": b'{"!": ["numpy", "int8", [true], "AA==", "", false]}',
    "object dtype": b'{"!": ["numpy", "object", [1], "AAAAAAAAAAA=", "", false]}',
    "dtype is a function": b'{"!": ["torch", "load", [1], "AA==", "", false]}',
    "scalar with a shape": b'{"!": ["numpy", "int8", [1], "AA==", "", true]}',
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_hostile_lines_are_refused_at_once(line):
    start = time.process_time()
    with pytest.raises(wire.WireError):
        wire.decode(line, arrays=True)
    assert time.process_time() - start < 1


def test_a_dtype_that_the_library_lacks_is_refused():
    with pytest.raises(wire.WireError, match="no dtype bfloat16"):
        wire.decode('{"!": ["numpy", "bfloat16", [1], "AAA=", "", false]}', arrays=True)


JUNK = st.recursive(
    st.none() | st.integers() | st.floats() | st.sampled_from([*wire._UNTAG, "!", "int8", "AA=="]) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["!", "a"]), inner),
    max_leaves=15,
)


@settings(max_examples=300)
@given(st.binary() | JUNK.map(lambda junk: json.dumps(junk).encode()) | JUNK.map(
    lambda junk: json.dumps({"!": junk if isinstance(junk, list) else [junk, junk]}).encode()))
def test_whatever_comes_is_plain_data_or_a_wire_error(line):
    try:
        value = wire.decode(line, arrays=True)
    except wire.WireError:
        return
    assert isinstance(value, (type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset, wire.Opaque,
                              numpy.ndarray, numpy.generic)) or "torch" in sys.modules


def test_wide_nesting_is_refused_in_time():
    line = b'{"!":["bytes","' + base64.b64encode(b"[" * 10**6) + b'"]}'
    assert wire.decode(line) == b"[" * 10**6
    comb = b"[" + b",".join([b"[" * 200 + b"]" * 200] * 4000) + b"]"
    start = time.process_time()
    assert len(wire.decode(comb)) == 4000
    assert time.process_time() - start < 3
