"""Lookups: many keys at once, out of one snapshot. Rows stand in the order of the keys, null where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stateside.checkpoint.unsafe_row import Value
from stateside.errors import RequestInvalid
from stateside.replica.keys import NO_KEY
from stateside.replica.store import Snapshot
from stateside.serving.reading.columns import Show, Values
from stateside.serving.reading.floor import NEWEST, AsOf, Floor
from stateside.serving.reading.holding import check_held
from stateside.serving.reading.json_key import JsonKeys
from stateside.serving.reading.reader import ViewReader
from stateside.serving.reading.scope import EVERYTHING, Scope
from stateside.serving.reading.shape import Shape
from stateside.serving.stamp import Source, Stamp

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
    parser = JsonKeys(repr(shape.catalogue.view), shape.key_parts)
    return [parser.parse(key) for key in given]


async def lookup(
    reader: ViewReader,
    keys: Sequence[Sequence[Value]],
    floor: Floor,
    *,
    as_of: AsOf = NEWEST,
    scope: Scope = EVERYTHING,
    show: Show | None = None,
    source: Source = "live",
) -> LookupAnswer:
    """The rows of these whole keys; waits like every read. AccessDenied if one of the keys is another's."""
    keys = [scope.narrowed(key) for key in keys]
    asked = _Keys(reader, keys, scope, show or reader.shape.columns.shown, source)
    aside = len(keys) > KEYS_AT_ONCE_MAX or source != "live"
    return await reader.read(floor, asked.answer, as_of, aside=aside)


class _Keys:
    """The keys of a lookup, in one snapshot."""

    def __init__(
        self, reader: ViewReader, keys: Sequence[Sequence[Value]], scope: Scope, show: Show, source: Source
    ) -> None:
        self._reader, self._scope, self._show, self._source = reader, scope, show, source
        self._codec = reader.shape.codec
        self._keys = [(self._codec.encode(key) or NO_KEY, key) for key in keys]

    def answer(self, snapshot: Snapshot, stamp: Stamp) -> LookupAnswer:
        """Their rows: first the live ones, then, of those that are not live, the sealed ones."""
        for key, _ in self._keys if stamp.share is not None else ():
            check_held(stamp, self._codec, key)
        found: dict[bytes, Values] = {} if self._source == "archive" else self._live(snapshot)
        missing = [values for key, values in self._keys if key not in found]
        if missing and self._source != "live" and self._reader.sealed is not None:
            found |= self._reader.sealed.of_keys(missing, stamp.batch)
        rows = [self._shown(found.get(key)) for key, _ in self._keys]
        return LookupAnswer(stamp if self._source == "live" else replace(stamp, source=self._source), rows)

    def _live(self, snapshot: Snapshot) -> dict[bytes, Values]:
        get, values = snapshot.get, self._reader.shape.values
        rows = ((key, get(key)) for key, _ in self._keys)
        return {key: values(key, row) for key, row in rows if row is not None}

    def _shown(self, values: Values | None) -> dict[str, Any] | None:
        return self._show(values) if values is not None and self._scope.has(values) else None
