"""A view with rollups without Spark: rows as Spark would store them, and what its rollups must say."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from stateside.replica.keys import KeyCodec
from stateside.replica.rollup_tables import Kept, Rollups
from stateside.spark_state.types import Column
from stateside.spark_state.unsafe_row import RowDecoder
from stateside.views.catalogue import Catalogue, Computed, KeyColumn, StateColumn, ViewColumn
from stateside.views.functions import KnownFunctions

KEY = {"customer": "string", "country": "string", "day": "date"}
STORED = [
    Column("count", "long"),
    Column("sum", "long"),
    Column("sum", "decimal(18,2)"),
    Column("isEmpty", "boolean"),
    Column("sum", "double"),
    Column("count", "long"),
    Column("max", "long"),
]
BUFFERS = [StateColumn(index, column.name, column.type) for index, column in enumerate(STORED)]
COLUMNS = (
    ViewColumn("orders", "long", "count", (BUFFERS[0],), "count(1)"),
    ViewColumn("points", "long", "sum", (BUFFERS[1],), "sum(points)"),
    ViewColumn("paid", "decimal(18,2)", "decimal_sum", (BUFFERS[2], BUFFERS[3]), "sum(price)", null_on_overflow=True),
    ViewColumn("largest", "long", "max", (BUFFERS[6],), "max(points)"),
    ViewColumn("mean", "double", "average", (BUFFERS[4], BUFFERS[5]), "avg(weight)"),
)
CATALOGUE = Catalogue(
    "shop",
    "spending",
    0,
    tuple(KeyColumn(n, t, StateColumn(i, n, t), n) for i, (n, t) in enumerate(KEY.items())),
    COLUMNS,
)
CODEC = KeyCodec(list(KEY.values()))
ALL_KEPT: list[Kept] = [
    (("country",),),
    (),
    (("day", "country"), (), ("customer",)),
    (("customer", "day"), ("country",)),
]

Key = tuple[str, str | None, int]


@dataclass(frozen=True)
class Row:
    """What the state holds for a key."""

    orders: int
    points: int | None
    cents: int | None
    weight: float
    weighed: int

    def encoded(self) -> bytes:
        nulls = 0b10 if self.points is None else 0
        words = struct.pack("<qqq?7xdqq", self.orders, self.points or 0, self.cents or 0, self.cents is None,
                            self.weight, self.weighed, self.points or 0)  # fmt: skip
        return struct.pack("<Q", nulls) + words


def rollups(kept: Kept, computed: Sequence[Computed] = (), functions: KnownFunctions | None = None) -> Rollups:
    return Rollups(replace(CATALOGUE, rollups=kept, computed=tuple(computed)), RowDecoder(STORED), functions)


def expected(rows: Mapping[Key, Row], columns: Iterable[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rollup by these columns, recomputed from all rows, without limits of size but for the decimal."""
    places = [list(KEY).index(name) for name in columns]
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for key, row in rows.items():
        groups[tuple(key[place] for place in places)].append(row)
    return {coarser: _added(group) for coarser, group in groups.items()}


def _added(rows: list[Row]) -> dict[str, Any]:
    points = [row.points for row in rows if row.points is not None]
    cents = [row.cents for row in rows if row.cents is not None]
    weight, weighed = sum((Fraction(row.weight) for row in rows), Fraction(0)), sum(row.weighed for row in rows)
    return {
        "orders": sum(row.orders for row in rows),
        "points": sum(points) if points else None,
        "paid": Decimal(sum(cents)).scaleb(-2) if cents and abs(sum(cents)) < 10**18 else None,
        "mean": weight.numerator / weight.denominator / weighed if weighed else None,
    }
