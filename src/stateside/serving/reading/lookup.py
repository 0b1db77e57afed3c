"""Lookups: many keys at once, out of one snapshot. Rows stand in the order of the keys, null where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stateside.checkpoint.unsafe_row import Value
from stateside.errors import RequestInvalid
from stateside.replica.keys import NO_KEY
from stateside.replica.store import Snapshot
from stateside.serving.reading.columns import Show
from stateside.serving.reading.floor import NEWEST, AsOf, Floor
from stateside.serving.reading.holding import check_held
from stateside.serving.reading.json_key import parse_json_key
from stateside.serving.reading.reader import ViewReader
from stateside.serving.reading.scope import EVERYTHING, Scope
from stateside.serving.reading.shape import Shape
from stateside.serving.stamp import Stamp

KEYS_MAX = 1_000
KEYS_AT_ONCE_MAX = 100  # more of them are looked up in a thread, and other requests are answered meanwhile


@dataclass(frozen=True, slots=True)
class LookupAnswer:
    """For each key its row, or None if there is none, and the stamp of the snapshot that they come from."""

    stamp: Stamp
    rows: list[dict[str, Any] | None]


def parse_keys(shape: Shape, document: Mapping[str, Any]) -> list[list[Value]]:
    """The keys in a lookup's body.

    RequestInvalid if it has anything but a list of up to 1,000 keys, KeyInvalid if one is no whole key of the view.
    """
    given = document.get("keys")
    if set(document) != {"keys"} or not isinstance(given, list) or not given:
        raise RequestInvalid("The body is no list of keys", next_step='Send {"keys": [["part", …], …]}')
    if len(given) > KEYS_MAX:
        raise RequestInvalid(
            f"There are {len(given):,} keys, more than {KEYS_MAX:,}", next_step="Send them in several requests"
        )
    of = repr(shape.catalogue.view)
    return [parse_json_key(of, shape.key_parts, key) for key in given]


async def lookup(
    reader: ViewReader,
    keys: Sequence[Sequence[Value]],
    floor: Floor,
    *,
    as_of: AsOf = NEWEST,
    scope: Scope = EVERYTHING,
    show: Show | None = None,
) -> LookupAnswer:
    """The live rows of these whole keys; waits like every read. AccessDenied if one of the keys is another's."""
    shape, shown = reader.shape, show or reader.shape.columns.shown
    encoded = [shape.codec.encode(scope.narrowed(key)) or NO_KEY for key in keys]

    def found(snapshot: Snapshot, key: bytes) -> dict[str, Any] | None:
        row = snapshot.get(key)
        if row is None:
            return None
        values = shape.values(key, row)
        return shown(values) if scope.has(values) else None

    def read(snapshot: Snapshot, stamp: Stamp) -> LookupAnswer:
        for key in encoded:
            check_held(stamp, shape.codec, key)
        return LookupAnswer(stamp, [found(snapshot, key) for key in encoded])

    return await reader.read(floor, read, as_of, aside=len(encoded) > KEYS_AT_ONCE_MAX)
