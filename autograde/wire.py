"""Plain data as one line of JSON: what may cross the wall between the grader and a learner's code.

None, bool, int, float, str, bytes, list, tuple, set, dict and numpy or torch arrays (by dtype, shape and bytes).
Nothing is ever unpickled, imported or called by name. Subclasses are flattened to the plain type with unbound
methods, so that a value cannot answer for itself; anything else arrives as `Opaque`, equal to nothing.
`decode` takes hostile bytes: it returns plain data or raises WireError. Standard library only: the sandbox
reads this file too.
"""
import base64
import binascii
import itertools
import json
import math
import re
import sys

MAX_BYTES = 2 << 20  # of one encoded value
MAX_NODES = 200_000
MAX_DEPTH = 60
MAX_SHOWN = 200  # characters of an unknown value's repr
TAG = "!"  # {"!": [kind, …]} stands for what JSON has no word for
_PLAIN_INT = 10**300  # larger ones travel as hexadecimal digits: decimal ones take quadratic time
_ITEM_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4,
    "float32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}


class WireError(Exception):
    """Data that cannot cross the wall: too large, too deep, or not what `encode` writes."""


class Opaque:
    """A value of another type, of which only the type's name and a short text have crossed. Equals nothing."""

    __hash__ = object.__hash__

    def __init__(self, type_name, shown=""):
        self.type_name, self.shown = type_name, shown

    def __eq__(self, other):
        return False

    def __repr__(self):
        return self.shown or f"<{self.type_name}>"


class Array:
    """A numpy or torch array, or a numpy scalar, by dtype, shape and bytes. Equals nothing; `real()` makes it one."""

    library = ""
    __hash__ = object.__hash__

    def __init__(self, dtype, shape, data, shown="", scalar=False):
        self.dtype, self.shape, self.data, self.shown, self.scalar = dtype, shape, data, shown, scalar

    def __eq__(self, other):
        return False

    def __repr__(self):
        return self.shown or f"<{self.library} {self.dtype} {self.shape}>"

    def real(self):
        """The array itself. Imports its library; raises WireError where that has no such dtype."""
        library = __import__(self.library)
        dtype = getattr(library, "bool_" if (self.library, self.dtype) == ("numpy", "bool") else self.dtype, None)
        if dtype is None:
            raise WireError(f"{self.library} has no dtype {self.dtype}")
        if self.library == "torch":
            flat = library.frombuffer(bytearray(self.data), dtype=dtype) if self.data else library.empty(0, dtype=dtype)
            return flat.reshape(self.shape)
        array = library.frombuffer(self.data, dtype=dtype).reshape(self.shape)
        return array[()] if self.scalar else array.copy()


# Named and placed like the real ones, so that a check recognises them without importing a library.
_ARRAYS = {
    "numpy": type("ndarray", (Array,), {"library": "numpy", "__module__": "numpy"}),
    "torch": type("Tensor", (Array,), {"library": "torch", "__module__": "torch"}),
}


def encode(value):
    """One line of ASCII text. Raises WireError where the value is too large or too deep."""
    text = _dumps(_tree(value, MAX_DEPTH, itertools.repeat(None, MAX_NODES)))
    if len(text) > MAX_BYTES:
        raise WireError(f"a value of {len(text)} bytes, the limit is {MAX_BYTES}")
    return text


def decode(line, *, arrays=False):
    """The value that a line (bytes or text) stands for; `arrays` makes real numpy and torch arrays.

    Raises WireError, and nothing else, for whatever `encode` does not write.
    """
    if len(line) > MAX_BYTES:
        raise WireError(f"a line of {len(line)} bytes, the limit is {MAX_BYTES}")
    try:
        text = line if isinstance(line, str) else str(line, "ascii")
        # Hardly anything is nested so deep that counting brackets would not tell.
        if text.count("[") + text.count("{") > 3 * MAX_DEPTH:
            _refuse_deep(text)
        value = _loads(text)
        return _real(value) if arrays and f'"{TAG}"' in text else value
    except WireError:
        raise
    except (ValueError, TypeError, RecursionError, OverflowError, MemoryError) as error:
        raise WireError(f"not a plain value: {type(error).__name__}: {str(error)[:100]}") from None


def flat(value):
    """A copy of plain types only: what the other side would see."""
    return decode(encode(value))


_dumps = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode


def _tree(value, depth, nodes):
    """What json can write; `nodes` runs out after so many values."""
    kind = type(value)
    if kind is str or kind is bool or kind is float or value is None:
        return value
    if kind is int:
        return value if -_PLAIN_INT < value < _PLAIN_INT else {TAG: ["int", hex(value)]}
    if depth == 0:
        raise WireError(f"a value nested deeper than {MAX_DEPTH}")
    if next(nodes, nodes) is nodes:
        raise WireError(f"a value of more than {MAX_NODES} parts")
    if kind is list:
        return [_tree(item, depth - 1, nodes) for item in _counted(value, nodes)]
    if kind is dict:
        _counted(value, nodes)
        if TAG not in value and set(map(type, value)) <= {str}:
            return {key: _tree(item, depth - 1, nodes) for key, item in value.items()}
        return {TAG: ["dict", [[_tree(k, depth - 1, nodes), _tree(v, depth - 1, nodes)] for k, v in value.items()]]}
    if kind is tuple or kind is set or kind is frozenset:
        return {TAG: [kind.__name__, [_tree(item, depth - 1, nodes) for item in _counted(value, nodes)]]}
    if kind is bytes:
        return {TAG: ["bytes", _base64(value)]}
    return _array_tree(value) or _other_tree(value, depth, nodes)


def _counted(items, nodes):
    if len(items) > MAX_NODES or (items and next(itertools.islice(nodes, len(items) - 1, None), nodes) is nodes):
        raise WireError(f"a value of more than {MAX_NODES} parts")
    return items


def _other_tree(value, depth, nodes):
    for kind, plain in _FLATTEN.items():
        if isinstance(value, kind):
            return _tree(plain(value), depth, nodes)
    try:
        shown = repr(value)
        shown = shown[:MAX_SHOWN] if type(shown) is str else ""
    except Exception:
        shown = ""
    return {TAG: ["other", str(type.__dict__["__name__"].__get__(type(value)))[:MAX_SHOWN], shown]}


_FLATTEN = {
    str: str.__str__,
    int: int.__pos__,
    float: float.__pos__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    dict: lambda value: dict(dict.items(value)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
}


def _array_tree(value):
    """The tree of a numpy or torch value; None for others and for dtypes that are no plain numbers."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    scalar = False
    # What is loaded may be a half-imported or a replaced module.
    if isinstance(numpy, type(sys)) and isinstance(value, (numpy.ndarray, numpy.generic)):
        library, scalar = "numpy", isinstance(value, numpy.generic)
        dtype = numpy.asarray(value).dtype
        dtype, array = (dtype.name, numpy.asarray(value, order="C", dtype=dtype.newbyteorder("=")))
    elif isinstance(torch, type(sys)) and isinstance(value, torch.Tensor) and value.layout is torch.strided:
        library, array = "torch", value.detach().cpu().contiguous().resolve_conj().resolve_neg()
        dtype = str(array.dtype).removeprefix("torch.")
    else:
        return None
    size = _ITEM_BYTES.get(dtype)
    if size is None:
        return None
    shape = [int(n) for n in array.shape]
    if math.prod(shape) * size > MAX_BYTES // 2:
        raise WireError(f"an array of {math.prod(shape) * size} bytes, the limit is {MAX_BYTES // 2}")
    # A view as bytes: torch needs no numpy for it, and numpy has no bfloat16.
    data = array.tobytes() if library == "numpy" else bytes(array.reshape(-1).view(torch.uint8).tolist())
    return {TAG: [library, dtype, shape, _base64(data), repr(value)[:MAX_SHOWN], scalar]}


def _base64(data):
    if len(data) > MAX_BYTES // 2:
        raise WireError(f"{len(data)} bytes, the limit is {MAX_BYTES // 2}")
    return base64.b64encode(data).decode()


def _object(pairs):
    """A JSON object back to a dict, or to what its tag says."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise WireError("a key appears twice")
    if TAG not in value:
        return value
    if len(value) != 1 or type(value[TAG]) is not list or not value[TAG] or value[TAG][0] not in _UNTAG:
        raise WireError("an unknown tag")
    kind, *parts = value[TAG]
    wanted = _UNTAG[kind][0]
    if list(map(type, parts)) != wanted:
        raise WireError(f"a malformed {kind}")
    return _UNTAG[kind][1](*parts)


def _integer(digits):
    if len(digits) > 302:
        raise WireError("an integer of too many digits")
    return int(digits)


def _hexadecimal(digits):
    return int(digits, 16)


def _bytes(text):
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise WireError(f"malformed bytes: {error}") from None


def _mapping(items):
    value = {}
    for item in items:
        if type(item) is not list or len(item) != 2:
            raise WireError("a malformed dict")
        value[item[0]] = item[1]
    if len(value) != len(items):
        raise WireError("a key appears twice")
    return value


def _array(library):
    def make(dtype, shape, data, shown, scalar):
        data = _bytes(data)
        if dtype not in _ITEM_BYTES or len(shape) > 32 or any(type(n) is not int or n < 0 for n in shape):
            raise WireError("a malformed array")
        if math.prod(shape) * _ITEM_BYTES[dtype] != len(data) or (scalar and shape):
            raise WireError("an array whose shape and bytes disagree")
        return _ARRAYS[library](dtype, tuple(shape), data, shown[:MAX_SHOWN], scalar)
    return make


_UNTAG = {  # kind -> ([types of what follows it], how to make the value)
    "tuple": ([list], tuple),
    "set": ([list], set),
    "frozenset": ([list], frozenset),
    "dict": ([list], _mapping),
    "int": ([str], _hexadecimal),
    "bytes": ([str], _bytes),
    "other": ([str, str], lambda name, shown: Opaque(name[:MAX_SHOWN], shown[:MAX_SHOWN])),
    "numpy": ([str, list, str, str, bool], _array("numpy")),
    "torch": ([str, list, str, str, bool], _array("torch")),
}


_loads = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer).decode


def _refuse_deep(text):
    """Raise WireError for more open brackets than `encode` writes; each level takes at most four of them."""
    brackets = _NO_BRACKETS.sub("", _STRINGS.sub("", text)).encode()
    if max(itertools.accumulate(map(_STEP.__getitem__, brackets)), default=0) > 4 * MAX_DEPTH + 4:
        raise WireError("nested too deeply")


_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_STRINGS, _NO_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"'), re.compile(r"[^][{}]+")


def _real(value):
    """The value with real arrays in place of described ones."""
    if isinstance(value, Array):
        return value.real()
    if type(value) is dict:
        return {_real(key): _real(item) for key, item in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(map(_real, value))
    return value
