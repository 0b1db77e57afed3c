"""SQL over a view of a million rows: a group-by as a worker process of the server runs it, cold, warm, and scanned."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.compare import Figure, Result, Side, compare
from benchmarks.played_spark import PlayedSpark
from stateside.core.layout import Layout
from stateside.replica.tail import Tail
from stateside.serving.access.principal import OPERATOR
from stateside.serving.rows.floor import Floor
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.sql import cache
from stateside.serving.sql.process import SqlRunner
from stateside.serving.sql.sql_query import SqlQuery

ROWS = 1_000_000
CHANGED = 10_000
COLD_ROUNDS = 3
GROUP_BY = "SELECT kind, account % 100 AS part, sum(sum) AS total, count(*) AS rows FROM bench GROUP BY ALL"


class Asked:
    """A folder with a view of this many rows, and a runner that is asked for the same statement."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._layout, self._rows = Layout(folder), rows
        self._spark = PlayedSpark(self._layout.view("bench"), partitions=2)
        for first in range(0, rows, ROWS):
            self._spark.commit(self._spark.changelogs(np.arange(first, min(first + ROWS, rows))))
        self._follow()
        self._views, self.runner = ViewReaders(self._layout), SqlRunner(self._layout)

    def change(self, rows: int) -> None:
        """A batch in which this many rows change, scattered over all."""
        for replica in self._views._replicas.values():
            replica.close()  # a process opens a replica once, and this one writes it too
        changed = np.random.default_rng(self._spark.batch).choice(self._rows, rows, replace=False)
        self._spark.commit(self._spark.changelogs(np.sort(changed), self._spark.batch))
        self._follow()
        self._views = ViewReaders(self._layout)

    def _follow(self) -> None:
        tail = Tail(self._layout.view("bench"))
        while tail.step():
            pass
        tail.close()

    def forget(self) -> None:
        """Let nothing be kept."""
        self.runner = SqlRunner(self._layout)

    def group_by(self) -> int:
        """Ask once; gives how many rows were read."""
        found = json.loads(asyncio.run(self._ask(GROUP_BY)))
        assert sum(row[3] for row in found["rows"]) == self._rows
        return self._rows

    def table(self) -> pa.Table:
        """The rows that are kept."""
        rows = self.runner.folder.kept.get("bench")
        assert rows is not None
        return rows.table()

    async def _ask(self, text: str) -> bytes:
        question = SqlQuery(text, timeout_ms=300_000)
        running = await self.runner.run(question, self._views, OPERATOR, Floor(), asyncio.Event().wait)  # type: ignore[arg-type]
        return b"".join([part async for part in running])


def run(folder: Path) -> Iterator[Result | Figure]:
    asked = Asked(folder / "million", ROWS)
    cold = []
    for _ in range(COLD_ROUNDS):
        asked.forget()
        cold.append(_took_ms(asked.group_by))
    yield Figure(f"SQL group-by over {ROWS:,} rows, cold", "ms", min(cold))
    warm = [_took_ms(asked.group_by) for _ in range(7)]
    yield Figure(f"SQL group-by over {ROWS:,} rows, warm (at most 500)", "ms", sorted(warm)[3])
    yield Figure(f"what is kept of {ROWS:,} rows", "MiB", asked.runner.folder.kept.nbytes / (1 << 20))
    ours, peer = Side("statement, in a DuckDB of its own", asked.group_by), Side("DuckDB", _bare(asked.table()))
    yield compare("SQL group-by, warm", "rows/s", ours, peer)
    yield Figure(f"SQL group-by over {ROWS:,} rows, {CHANGED:,} of them changed since", "ms", _moved_ms(asked))
    before = cache.KEPT_RELATION_BYTES_MAX
    cache.KEPT_RELATION_BYTES_MAX = 0
    asked.forget()
    yield Figure(f"SQL group-by over {ROWS:,} rows, scanned", "ms", _took_ms(asked.group_by))
    cache.KEPT_RELATION_BYTES_MAX = before


def _moved_ms(asked: Asked) -> float:
    took = []
    for _ in range(COLD_ROUNDS):
        asked.change(CHANGED)
        took.append(_took_ms(asked.group_by))
    return sorted(took)[COLD_ROUNDS // 2]


def measure_large(folder: Path, rows: int) -> None:
    """By hand: what a view of many rows takes, and how much memory this process has had at most."""
    asked = Asked(folder, rows)
    for turn in ("scanned", "scanned", "cold", "warm"):
        cache.KEPT_RELATION_BYTES_MAX = 0 if turn == "scanned" else 768 << 20
        took = _took_ms(asked.group_by)
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        kept_mib = asked.runner.folder.kept.nbytes >> 20
        print(f"{rows:,} rows, {turn}: {took:,.0f} ms, peak {peak_mib:,} MiB, kept {kept_mib:,} MiB")


def _took_ms(work: Any) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1_000


def _bare(table: pa.Table) -> Any:
    """The same statement in one DuckDB that stays open, over the same columns."""
    connection = duckdb.connect()
    connection.register("bench", table)

    def work() -> int:
        assert len(connection.execute(GROUP_BY).fetchall()) > 0
        return int(table.num_rows)

    return work
