"""Lookups: the rows of many whole keys from one snapshot, in the order of the keys, null for a key without a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stateside.core.errors import RequestInvalid
from stateside.replica.keys import NO_KEY
from stateside.replica.store import Snapshot
from stateside.serving.rows.floor import NEWEST, AsOf, Floor
from stateside.serving.rows.scope import EVERYTHING, Scope, check_held
from stateside.serving.rows.shape import Shape
from stateside.serving.rows.view_columns import Show, Values
from stateside.serving.rows.view_reader import ViewReader
from stateside.serving.stamp import Source, Stamp
from stateside.spark_state.unsafe_row import Value

KEYS_MAX = 1_000
KEYS_AT_ONCE_MAX = 100  # beyond, a thread looks the keys up while other requests are answered


@dataclass(frozen=True, slots=True)
class LookupAnswer:
    """For each key its row or None, and the stamp of the snapshot."""

    stamp: Stamp
    rows: list[dict[str, Any] | None]


def parse_keys(shape: Shape, document: Mapping[str, Any]) -> Sequence[Sequence[Value]]:
    """The keys in a lookup's body.

    RequestInvalid unless the body is a list of up to 1,000 keys; KeyInvalid if one is no whole key of the view.
    """
    given = document.get("keys")
    if set(document) != {"keys"} or not isinstance(given, list) or not given:
        raise RequestInvalid("The body is no list of keys", next_step='Send {"keys": [["part", …], …]}')
    if len(given) > KEYS_MAX:
        raise RequestInvalid(
            f"There are {len(given):,} keys, more than {KEYS_MAX:,}", next_step="Send them in several requests"
        )
    return shape.json_keys.parse_all(given)


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
    """The rows of these whole keys; waits like every read. AccessDenied for a key out of scope."""
    if scope is not EVERYTHING:
        keys = [scope.narrowed(key) for key in keys]
    asked = _LookupKeys(reader, keys, scope, show or reader.shape.columns.shown, source)
    aside = len(keys) > KEYS_AT_ONCE_MAX or source != "live"
    return await reader.read(floor, asked.answer, as_of, aside=aside)


class _LookupKeys:
    """The keys of a lookup, in one snapshot."""

    def __init__(
        self, reader: ViewReader, keys: Sequence[Sequence[Value]], scope: Scope, show: Show, source: Source
    ) -> None:
        self._reader, self._scope, self._show, self._source = reader, scope, show, source
        codec = reader.shape.codec
        self._keys, self._encoded = keys, codec.encode_all(keys) if codec.types else [NO_KEY] * len(keys)

    def answer(self, snapshot: Snapshot, stamp: Stamp) -> LookupAnswer:
        """The rows of the keys: live rows first, then sealed rows for keys without a live one."""
        for key in self._encoded if stamp.share is not None else ():
            check_held(stamp, self._reader.shape.codec, key)
        found: dict[bytes, Values] = {} if self._source == "archive" else self._live(snapshot)
        if self._source != "live":
            found |= self._sealed(found, stamp.batch)
            stamp = replace(stamp, source=self._source)
        if self._scope is not EVERYTHING:
            found = {key: values for key, values in found.items() if self._scope.has(values)}
        shown = dict(zip(found, self._show.all(list(found.values())), strict=True))
        return LookupAnswer(stamp, list(map(shown.get, self._encoded)))

    def _live(self, snapshot: Snapshot) -> dict[bytes, Values]:
        shape, rows = self._reader.shape, snapshot.get_all(self._encoded)
        there = [each for each in zip(self._keys, self._encoded, rows, strict=True) if each[2] is not None]
        keys, encoded, found = zip(*there, strict=True) if there else ((), (), ())
        if not shape.keys_as_asked:
            keys = tuple(map(shape.codec.decode, encoded))
        return dict(zip(encoded, shape.values_of_all(keys, found), strict=True))

    def _sealed(self, live: Mapping[bytes, Values], batch: int) -> dict[bytes, Values]:
        missing = [key for key, encoded in zip(self._keys, self._encoded, strict=True) if encoded not in live]
        sealed = self._reader.sealed
        return {} if sealed is None or not missing else sealed.of_keys(missing, batch)
