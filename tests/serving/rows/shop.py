"""A view of orders by customer and country, moved batch by batch without Spark, and asked page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stateside.core.layout import Layout
from stateside.replica.tail import Tail
from stateside.serving.access.position_codec import PLAIN, PositionCodec
from stateside.serving.rows.floor import NEWEST, AsOf, Floor
from stateside.serving.rows.relation import Relation, Scope
from stateside.serving.rows.row_query import RowQuery, ScanPage, page
from stateside.serving.rows.view_reader import ViewReader
from tests.replica import spark_job
from tests.replica.spark_job import Changes, Job, Rows

ROLLUPS = [["country"], ["customer"], []]


@dataclass(frozen=True)
class Asked:
    """What a reader asks, as an address has it."""

    parts: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    order: str | None = None
    columns: str | None = None
    source: str | None = None
    limit: int | None = None

    def question(self, reader: ViewReader) -> RowQuery:
        given = {"order": self.order, "columns": self.columns, "source": self.source}
        parameters = {name: value for name, value in given.items() if value is not None}
        return RowQuery.parse(Relation(reader), self.parts, self.where, parameters, self.limit)


class Shop:
    """The view `spending` in a folder; with `archive`, closed rows go to the table of that name."""

    def __init__(self, folder: Path, archive: str | None = None) -> None:
        self.layout = Layout(folder)
        self.job = Job(self.layout.view("spending"))
        self.view = self.job.view
        self.view.catalogue.write_bytes(replace(spark_job.catalogue(ROLLUPS), archive=archive).as_json())

    def batch(self, changes: Changes) -> None:
        """One more batch, which the replica has at once."""
        self.job.run(changes)
        self.follow()

    def follow(self) -> None:
        """Let the replica have what was committed. In one process it is open for writing or for reading."""
        tail = Tail(self.view)
        while tail.step():
            pass
        tail.close()

    @contextmanager
    def reader(self) -> Iterator[ViewReader]:
        made = ViewReader(self.view)
        try:
            yield made
        finally:
            made.close()

    def page(
        self,
        asked: Asked,
        cursor: str | None = None,
        *,
        as_of: AsOf = NEWEST,
        where: dict[str, str] | None = None,
        positions: PositionCodec = PLAIN,
    ) -> ScanPage:
        """A page, for a holder whose rows have these values, and who is shown positions so."""
        with self.reader() as reader:
            return asyncio.run(
                page(
                    Relation(reader, scope=Scope.of(reader.shape, where or {})),
                    asked.question(reader),
                    Floor(wait_ms=0, positions=positions),
                    as_of=as_of,
                    cursor=cursor,
                )
            )

    def rows(self, asked: Asked, **more: Any) -> list[dict[str, Any]]:
        """All pages of a question, put together."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            answer = self.page(asked, cursor, **more)
            found += answer.rows
            cursor = answer.cursor
            if cursor is None:
                return found


def shown(rows: Rows) -> list[dict[str, Any]]:
    """Rows as answers have them, in the order of their keys."""
    return [
        {"customer": customer, "country": country, "orders": orders, "total": total}
        for (customer, country), (orders, total) in sorted(rows.items())
    ]


def values_of(answer: Sequence[dict[str, Any]], name: str) -> list[Any]:
    """One column of an answer."""
    return [row[name] for row in answer]
