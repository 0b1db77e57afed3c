"""A shop whose rows are closed: they leave the state for a table of the archive. Real sink, no Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from stateside.pipeline.sinks.delta import archive_sink
from stateside.pipeline.sinks.sink import BatchId, SinkContext
from stateside.serving.rows.floor import NEWEST, AsOf, Floor
from stateside.serving.rows.relation import Relation, ViewAnswer
from stateside.serving.rows.row_query import lookup
from stateside.serving.stamp import Source
from tests.replica.spark_job import Changes, Key, Rows

from .shop import ROLLUPS, Asked, Shop, shown

SCHEMA = pa.schema([("customer", pa.string()), ("country", pa.string()), ("orders", pa.int64()), ("total", pa.int64())])
CUSTOMERS = ["emma", "ben"]
COUNTRIES = ["a", "b", "c", "d", "de", "e", "f", "fr", "it"]
SOURCES: tuple[Source, ...] = ("both", "live", "archive")


class ClosingShop(Shop):
    """A shop whose rows are closed: they leave the state for the table `closed`, in steps as Spark and the sink take.

    `sealed_rows` are all closed ones, by the batch that closed them.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, archive="closed")
        self.sealed_rows: list[tuple[int, Key, tuple[int, int]]] = []
        self._sink = archive_sink("closed")(SinkContext(self.layout, "spending", SCHEMA))

    def store(self, closed: Sequence[Key], last: Rows | None = None) -> None:
        """Step 1: the sink stores what the next batch closes; again, if the batch is repeated.

        `last` are rows that the closing batch itself brings, or changes for the last time.
        """
        rows = [(*key, *row) for key, row in self._closing(closed, last).items()]
        columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
        table = pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)
        self._sink.write(table, BatchId("query", self.job.batch))

    def commit(self, closed: Sequence[Key], changes: Changes, last: Rows | None = None) -> None:
        """Step 2: Spark commits the batch, whose state has the closed rows no more."""
        batch, sealed = self.job.batch, self._closing(closed, last)
        self.sealed_rows += [(batch, key, row) for key, row in sealed.items()]
        self.job.run({**changes, **dict.fromkeys(sealed)})

    def _closing(self, closed: Sequence[Key], last: Rows | None) -> Rows:
        return {key: self.job.rows[key] for key in closed} | (last or {})

    def expected(self, batch: int, source: str = "both") -> dict[str, list[dict[str, Any]]]:
        """By customer, all rows as of a batch: what lives in it, and what was sealed up to it."""
        rows: Rows = {}
        if source != "archive":
            rows |= self.job.states[batch]
        if source != "live":
            rows |= {key: row for sealed_batch, key, row in self.sealed_rows if sealed_batch <= batch}
        return {who: [row for row in shown(rows) if row["customer"] == who] for who in CUSTOMERS}

    def all_expected(self, batch: int, source: str) -> list[dict[str, Any]]:
        """All customers' rows, in key order."""
        found = self.expected(batch, source)
        return [row for who in sorted(CUSTOMERS) for row in found[who]]

    def check_scan(self, batch: int, source: Source) -> None:
        """A scan, page by page and in the order of a column, has the rows; a rollup adds them up."""
        rows, as_of = self.all_expected(batch, source), AsOf(batch)
        assert self.rows(Asked(source=source, limit=2), as_of=as_of) == rows
        ordered = self.rows(Asked(source=source, order="-total", limit=2), as_of=as_of)
        assert ordered == sorted(rows, key=lambda row: -row["total"])
        for by in ROLLUPS:
            answer = self.rolled_up(by, source, as_of)
            assert (answer.stamp.batch, answer.stamp.source) == (batch, source)
            assert answer.rows == added_up(rows, by)

    def rolled_up(self, by: Sequence[str], source: Source, as_of: AsOf = NEWEST, *parts: str) -> ViewAnswer:
        with self.reader() as reader:
            return asyncio.run(Relation.of(reader, by=by).rollup(parts, Floor(wait_ms=0), as_of, source))

    def looked_up(self, who: str, source: Source, batch: int) -> list[dict[str, Any]]:
        """The rows of all keys that a customer may have."""
        with self.reader() as reader:
            keys = [[who, country] for country in COUNTRIES]
            answer = asyncio.run(lookup(Relation(reader), keys, Floor(), as_of=AsOf(batch), source=source))
            assert (answer.stamp.batch, answer.stamp.source) == (batch, source)
        for key, row in zip(keys, answer.rows, strict=True):
            assert row is None or [row["customer"], row["country"]] == key
        return [row for row in answer.rows if row is not None]

    def check(self, as_of: int | None = None) -> int:
        """Each source answers for each customer what it must, in one piece and in pages; the batch that it is of."""
        batches = set()
        for who in CUSTOMERS:
            for source in SOURCES:
                answer = self.page(Asked(parts=(who,), source=source), as_of=AsOf(as_of))
                assert answer.stamp.source == source
                assert answer.rows == self.expected(answer.stamp.batch, source)[who]
                paged = self.rows(Asked(parts=(who,), source=source, limit=1), as_of=AsOf(answer.stamp.batch))
                assert paged == answer.rows
                assert self.looked_up(who, source, answer.stamp.batch) == answer.rows
                batches.add(answer.stamp.batch)
        (batch,) = batches
        for source in SOURCES:
            self.check_scan(batch, source)
        return batch


def added_up(rows: Sequence[dict[str, Any]], by: Sequence[str]) -> list[dict[str, Any]]:
    """What a rollup of these rows has."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in by)
        total = found.setdefault(key, {**{name: row[name] for name in by}, "orders": 0, "total": 0})
        total["orders"] += row["orders"]
        total["total"] += row["total"]
    return [found[key] for key in sorted(found)]
