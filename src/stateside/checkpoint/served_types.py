"""Which types of the state can be served, and what to do about those that cannot."""

from __future__ import annotations

from stateside.checkpoint.types import Array, Map, Primitive, SparkType, Struct, parse_type
from stateside.checkpoint.unsafe_row import SERVED_TYPES
from stateside.errors import CheckpointInvalid


def unserved(type_: str) -> str | None:
    """What to do instead of serving a column of this type; None if it can be served."""
    try:
        return _unserved(parse_type(type_))
    except CheckpointInvalid as error:
        return error.what


def unkeyable(type_: str) -> str | None:
    """What to do instead of asking by a column of this type; None if it can stand in a key."""
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
