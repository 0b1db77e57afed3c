"""Column types and names: which types can be served or used in a key, and unique names for columns."""

from __future__ import annotations

from collections.abc import Iterable

from stateside.core.errors import CheckpointInvalid
from stateside.spark_state.types import Array, Map, Primitive, SparkType, Struct, parse_type
from stateside.spark_state.unsafe_row import SERVED_TYPES


def unserved(type_: str) -> str | None:
    """What to do instead of serving a column of this type; None if the type can be served."""
    try:
        return _unserved(parse_type(type_))
    except CheckpointInvalid as error:
        return error.what


def unkeyable(type_: str) -> str | None:
    """What to do instead of querying by a column of this type; None if the type can be in a key."""
    if "collate" in type_:
        return "Group by a plain string: what a collation takes for equal has several texts"
    return unserved(type_) or _unkeyable(parse_type(type_))


def _unserved(type_: SparkType) -> str | None:
    match type_:
        case Primitive(name):
            return None if name in SERVED_TYPES or name.startswith("interval") else "Keep it as a string"
        case Array(element):
            return _unserved(element)
        case Map(key, value):
            return _unserved(key) or _unserved(value)
        case Struct(names, types):
            if len(set(names)) < len(names):
                return "Give each of its fields a name of its own"
            return next(filter(None, map(_unserved, types)), None)
    return None


def _unkeyable(type_: SparkType) -> str | None:
    match type_:
        case Primitive(name) if name.startswith("interval"):
            return "Nobody can ask by an interval: keep it as a number of seconds or months, or in the value"
        case Array() | Map():
            return "Nobody can ask by a list or a map: keep it as a string, or in the value"
        case Struct(_, types):
            return next(filter(None, map(_unkeyable, types)), None)
    return None


def apart(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """The names made unique, and different from `taken`: a second `size` becomes `size_2`, or `size_3` if that exists.

    A name that is given literally keeps its form, wherever it comes.
    """
    asked, used = list(names), set(taken)
    given: list[str] = []
    for name in asked:
        number, free = 1, name
        while free in used or (number > 1 and free in asked):
            number += 1
            free = f"{name}_{number}"
        used.add(free)
        given.append(free)
    return given
