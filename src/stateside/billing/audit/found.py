"""What was found: open rows and rollups of one batch, and the documents and dead letters that were sealed up to it.

It is laid into temporary tables of the ledger's connection, which the laws then compare with the journal:

    standing        batch, position, watermark_us: one row
    open_rows       customer, period_end_us, type, plan, quantity, events, amount_micros
    rollup_rows     period_end_us, plan, type, quantity, events, amount_micros
    documents       as stored, with times in microseconds and the series, `I` or `N`
    lines           the documents' lines, each with what its document says
    dead_letters    as stored
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable

from stateside.billing.audit.ledger import Ledger
from stateside.layout import Layout

ROWS_AT_ONCE = 50_000
Row = Mapping[str, Any]

_TIME = pa.timestamp("us", tz="UTC")
_LINE = pa.struct(
    [("type", pa.string()), ("plan", pa.string())]
    + [(name, pa.int64()) for name in ("quantity", "events", "amount_micros", "charged_micros")]
)
DOCUMENTS = pa.schema(
    [
        ("number", pa.string()),
        ("kind", pa.string()),
        ("sequence", pa.int64()),
        ("customer", pa.string()),
        ("period", pa.string()),
        ("period_start", _TIME),
        ("period_end", _TIME),
        ("currency", pa.string()),
        ("lines", pa.list_(_LINE)),
        ("amount_micros", pa.int64()),
        ("charged_micros", pa.int64()),
        ("events", pa.int64()),
        ("corrects", pa.string()),
        ("event_ids", pa.list_(pa.string())),
        ("late", pa.bool_()),
        ("sealed_batch", pa.int64()),
    ]
)
DEAD_LETTERS = pa.schema(
    [("offset", pa.int64())]
    + [(name, pa.string()) for name in ("id", "entity", "type", "reason")]
    + [("sealed_batch", pa.int64())]
)
_NUMBERS = "quantity hugeint, events hugeint, amount_micros hugeint"
OPEN_ROWS = f"customer text, period_end_us bigint, type text, plan text, {_NUMBERS}"
ROLLUP_ROWS = f"period_end_us bigint, plan text, type text, {_NUMBERS}"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the live rows stand: after which batch, at which offset of the journal, under which watermark."""

    batch: int
    offset: int
    watermark_us: int


@dataclass(frozen=True, slots=True)
class Live:
    """The open rows, and their rollup by period, plan and type, as readers see them: all of one snapshot."""

    standing: Standing
    rows: Iterable[Row]
    rollups: Iterable[Row]


def take_live(ledger: Ledger, live: Live) -> None:
    """Take the rows in."""
    standing = live.standing
    ledger.sql.execute("create or replace temp table standing (batch bigint, position bigint, watermark_us bigint)")
    ledger.sql.execute(
        "insert into standing values (?, ?, ?)", [standing.batch, standing.offset, standing.watermark_us]
    )
    insert_rows(ledger, "open_rows", OPEN_ROWS, live.rows)
    insert_rows(ledger, "rollup_rows", ROLLUP_ROWS, live.rollups)


def insert_rows(ledger: Ledger, table: str, columns: str, rows: Iterable[Row]) -> None:
    """Rows as readers see them, some at a time, into a new temporary table with these columns."""
    ledger.sql.execute(f"create or replace temp table {table} ({columns})")
    names = [column.split()[0].replace("period_end_us", "period_end") for column in columns.split(", ")]
    rest = iter(rows)
    while some := list(islice(rest, ROWS_AT_ONCE)):
        ledger.sql.register("given_rows", pa.table({name: [row[name] for row in some] for name in names}))
        ledger.sql.execute(f"""
            insert into {table} by name
            select * exclude (period_end), epoch_us(period_end::timestamptz) as period_end_us from given_rows
        """)
        ledger.sql.unregister("given_rows")


def take_documents(ledger: Ledger, layout: Layout, batch: int) -> None:
    """Take in the documents and dead letters that were sealed up to a batch. Call it after the live rows were read."""
    ledger.sql.register("stored", _stored(layout.table("documents"), DOCUMENTS))
    ledger.sql.execute(
        """
        create or replace temp table documents as
        select * exclude (period_start, period_end),
               case when kind = 'invoice' then 'I' else 'N' end as series,
               epoch_us(period_start) as period_start_us, epoch_us(period_end) as period_end_us
        from stored where sealed_batch <= ?
        """,
        [batch],
    )
    ledger.sql.execute("""
        create or replace temp table lines as
        select number, kind, series, sequence, customer, period_end_us, currency, sealed_batch, unnest(line)
        from (select *, unnest(lines) as line from documents)
    """)
    ledger.sql.register("stored", _stored(layout.table("dead_letters"), DEAD_LETTERS))
    ledger.sql.execute("create or replace temp table dead_letters as from stored where sealed_batch <= ?", [batch])
    ledger.sql.unregister("stored")


def _stored(path: Path, schema: pa.Schema) -> Any:
    """The rows of a Delta table; none if it was never made, which the laws judge."""
    if not DeltaTable.is_deltatable(str(path)):
        return schema.empty_table()
    # Through deltalake's own file system, in Python, Arrow's threads may abort a process that ends soon after.
    folder = pafs.SubTreeFileSystem(str(path.resolve()), pafs.LocalFileSystem())
    return DeltaTable(path).to_pyarrow_dataset(filesystem=folder).scanner(columns=schema.names).to_reader()
