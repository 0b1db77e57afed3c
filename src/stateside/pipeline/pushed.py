"""Conditions of a query that Spark hands down to the journal's source, as far as its segments can tell.

    on `type`                     =, in
    on `time`, `appended`         =, <, <=, >, >=
    on `offset`                   =, <, <=, >, >=

Whatever else Spark hands down narrows nothing. (What a tag is asked by, `array_contains`, it never does: the source's
option `tags` is for that.)
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from stateside.journal.conditions import EVER, Conditions, Span

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def narrowed(conditions: Conditions, pushed: Filter) -> Conditions:
    """The conditions, with this one more."""
    match getattr(pushed, "attribute", None):
        case ("type",):
            types = _texts(pushed)
            if types is not None:
                known = conditions.types
                return replace(conditions, types=types if known is None else known & types)
        case ("time",):
            return replace(conditions, time=conditions.time.cut(_span(pushed, _microseconds)))
        case ("appended",):
            return replace(conditions, appended=conditions.appended.cut(_span(pushed, _microseconds)))
    return conditions


def offsets_of(pushed: Filter) -> Span:
    """The offsets that meet this condition."""
    return _span(pushed, _whole) if getattr(pushed, "attribute", None) == ("offset",) else EVER


def _texts(pushed: Filter) -> frozenset[str] | None:
    if isinstance(pushed, EqualTo) and isinstance(pushed.value, str):
        return frozenset([pushed.value])
    if isinstance(pushed, In) and all(isinstance(value, str) for value in pushed.value):
        return frozenset(pushed.value)
    return None


def _span(pushed: Filter, number_of: Any) -> Span:
    number = number_of(getattr(pushed, "value", None))
    if number is None:
        return EVER
    match pushed:
        case EqualTo():
            return Span(number, number)
        case GreaterThan():
            return Span(first=number + 1)
        case GreaterThanOrEqual():
            return Span(first=number)
        case LessThan():
            return Span(last=number - 1)
        case LessThanOrEqual():
            return Span(last=number)
    return EVER


def _microseconds(value: Any) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(microseconds=1)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
