"""UnsafeRows of every type, written from the drawing in `unsafe_row` without its code, and values for them."""

import decimal
import json
import struct
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from stateside.spark_state.types import Array, Decimal, Map, Primitive, SparkType, Struct, parse_type

LAYOUTS = {"boolean": "?", "byte": "b", "short": "h", "integer": "i", "long": "q", "float": "f", "double": "d"}
LAYOUTS |= {"date": "i", "timestamp": "q", "timestamp_ntz": "q", "interval year to month": "i"}
LAYOUTS |= {"interval day to second": "q"}


def encode_row(types: Sequence[str], values: Sequence[Any]) -> bytes:
    """A row of these types."""
    return _row([parse_type(type_) for type_ in types], values)


def _row(types: Sequence[SparkType], values: Sequence[Any]) -> bytes:
    return _words(_null_bits(values), [8] * len(types), types, values)


def _array(element: SparkType, values: Sequence[Any]) -> bytes:
    width = struct.calcsize(LAYOUTS[element.name]) if isinstance(element, Primitive) and element.name in LAYOUTS else 8
    head = struct.pack("<q", len(values)) + _null_bits(values)
    return _words(head, [width] * len(values), [element] * len(values), values)


def _null_bits(values: Sequence[Any]) -> bytes:
    nulls = sum(1 << index for index, value in enumerate(values) if value is None)
    return nulls.to_bytes((len(values) + 63) // 64 * 8, "little")


def _words(head: bytes, widths: Sequence[int], types: Sequence[SparkType], values: Sequence[Any]) -> bytes:
    fixed, variable, begin = b"", b"", len(head) + (sum(widths) + 7) // 8 * 8
    for width, type_, value in zip(widths, types, values, strict=True):
        field = b"" if value is None else _fixed(type_, value)
        if field is None:
            raw = _variable(type_, value)
            field = struct.pack("<II", len(raw), begin + len(variable))
            variable += raw + bytes(-len(raw) % 8)
        fixed += field.ljust(width, b"\x00")
    return head + fixed + bytes(-len(fixed) % 8) + variable


def _fixed(type_: SparkType, value: Any) -> bytes | None:
    match type_:
        case Primitive(name) if name in LAYOUTS:
            return struct.pack("<" + LAYOUTS[name], value)
        case Decimal() if type_.precision <= 18:
            return struct.pack("<q", _unscaled(type_, value))
    return None


def _variable(type_: SparkType, value: Any) -> bytes:
    match type_:
        case Decimal():
            number = _unscaled(type_, value)
            return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
        case Struct(_, types):
            return _row(types, value)
        case Array(element):
            return _array(element, value)
        case Map(key, of):
            keys = _array(key, [pair[0] for pair in value])
            return struct.pack("<q", len(keys)) + keys + _array(of, [pair[1] for pair in value])
        case Primitive("interval"):
            return struct.pack("<iiq", *value)
    return value.encode() if isinstance(value, str) else bytes(value)


def _unscaled(type_: Decimal, value: decimal.Decimal) -> int:
    return int(value.scaleb(type_.scale, decimal.Context(prec=60)))


def struct_of(**fields: Any) -> str:
    """The JSON of a struct type."""
    return json.dumps({"type": "struct", "fields": [{"name": n, "type": _nested(t)} for n, t in fields.items()]})


def array_of(element: str) -> str:
    """The JSON of an array type."""
    return json.dumps({"type": "array", "elementType": _nested(element)})


def map_of(key: str, value: str) -> str:
    """The JSON of a map type."""
    return json.dumps({"type": "map", "keyType": _nested(key), "valueType": _nested(value)})


def _nested(type_: str) -> Any:
    return json.loads(type_) if type_.startswith("{") else type_


def decimals(digits: int, behind: int) -> st.SearchStrategy[decimal.Decimal]:
    """Decimals of that many digits, so many of them behind the point."""
    largest = 10**digits - 1
    unscaled = st.integers(-3, 3) | st.integers(-largest, largest) | st.sampled_from([largest, -largest])
    return unscaled.map(lambda number: decimal.Decimal(number).scaleb(-behind, decimal.Context(prec=60)))


_ints = st.integers(-(2**31), 2**31 - 1)
_longs = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)
_texts = st.text("\x00\x01ab\xffĀ😀", max_size=4) | st.text(max_size=20)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "byte": st.integers(-(2**7), 2**7 - 1),
    "short": st.integers(-(2**15), 2**15 - 1),
    "integer": _ints,
    "long": _longs,
    "float": st.floats(width=32),
    "double": st.floats(),
    "date": _ints,
    "timestamp": _longs,
    "timestamp_ntz": _longs,
    "interval year to month": _ints,
    "interval day to second": _longs,
    "interval": st.tuples(_ints, _ints, st.integers(-(2**50), 2**50)),
    "string": _texts,
    "binary": st.binary(max_size=20),
    "decimal(9,2)": decimals(9, 2),
    "decimal(18,0)": decimals(18, 0),
    "decimal(38,10)": decimals(38, 10),
    "void": st.none(),
}


def _or_null(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def _rows(*types: str) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*(_or_null(VALUES[type_]) for type_ in types))


WINDOW = struct_of(start="timestamp", end="timestamp")
VALUES[WINDOW] = _rows("timestamp", "timestamp")
VALUES[struct_of(name="string", price="decimal(20,3)", period=WINDOW)] = st.tuples(
    _or_null(_texts), _or_null(decimals(20, 3)), _or_null(VALUES[WINDOW])
)
VALUES[array_of("short")] = st.lists(_or_null(VALUES["short"]), max_size=5).map(tuple)
VALUES[array_of(WINDOW)] = st.lists(_or_null(VALUES[WINDOW]), max_size=3).map(tuple)
VALUES[array_of(array_of("string"))] = st.lists(
    _or_null(st.lists(_or_null(_texts), max_size=3).map(tuple)), max_size=3
).map(tuple)
VALUES[map_of("string", "decimal(9,2)")] = st.dictionaries(_texts, _or_null(decimals(9, 2)), max_size=3).map(
    lambda found: tuple(found.items())
)
VALUES[map_of("date", array_of("interval day to second"))] = st.dictionaries(
    _ints, _or_null(st.lists(_or_null(_longs), max_size=3).map(tuple)), max_size=3
).map(lambda found: tuple(found.items()))


def values_of(types: Sequence[str]) -> st.SearchStrategy[tuple[Any, ...]]:
    """The values of a row of these types, nulls among them."""
    return _rows(*types)
