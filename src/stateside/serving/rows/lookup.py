"""Lookups: the rows of many whole keys from one snapshot, in the order of the keys, null for a key without a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stateside.core.errors import RequestInvalid
from stateside.replica.keys import NO_KEY
from stateside.serving.rows.columns import Show
from stateside.serving.rows.floor import NEWEST, AsOf, Floor
from stateside.serving.rows.relation import EVERYTHING, Relation, RelationSnapshot
from stateside.serving.rows.shape import Shape
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
    relation: Relation,
    keys: Sequence[Sequence[Value]],
    floor: Floor,
    *,
    as_of: AsOf = NEWEST,
    show: Show | None = None,
    source: Source = "live",
) -> LookupAnswer:
    """The rows of these whole keys; waits like every read. AccessDenied for a key out of scope."""
    if relation.scope is not EVERYTHING:
        keys = [relation.scope.narrowed(key) for key in keys]
    codec = relation.table.codec
    encoded = codec.encode_all(keys) if codec.types else [NO_KEY] * len(keys)
    shower = show or relation.table.columns.shown

    def answer(at: RelationSnapshot) -> LookupAnswer:
        found = at.find(keys, encoded)
        shown = dict(zip(found, shower.all(list(found.values())), strict=True))
        return LookupAnswer(at.stamp, list(map(shown.get, encoded)))

    aside = len(keys) > KEYS_AT_ONCE_MAX or source != "live"
    return await relation.read(floor, answer, as_of, source=source, aside=aside)
