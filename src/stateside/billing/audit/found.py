"""Found data: open rows and rollups of one batch, and the documents and dead letters that belong to them.

The data are loaded into temporary tables of the ledger's connection, for the laws to compare with the journal:

    standing        batch, position, watermark_us: one row
    open_rows       customer, period_end_us, type, plan, quantity, events, amount_micros
    rollup_rows     period_end_us, plan, type, quantity, events, amount_micros
    stored          all documents, with times in microseconds and the series, `I` or `N`
    documents       the stored documents that belong to the open rows
    lines           the documents' lines, each with its document's fields
    dead_letters    as stored, for events before the position

The open rows cover events before the position, in periods that end after the watermark; so the documents of periods
closed by the watermark belong to them. A note or late invoice belongs if its `sealed_position`, the offset after its
last event, is not beyond the position; an invoice of formerly open rows has all events of its account up to its own
`sealed_position`. Both rules hold for whichever query sealed a document, in whichever batches. But if the query was
started over, and its position lies inside a document's range, no exact comparison is possible: NotFreshEnough names the
position from which on it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import DeltaTable

from stateside.billing.audit.ledger import Ledger
from stateside.core import Layout
from stateside.core.errors import NotFreshEnough
from stateside.journal import open_journal

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
        ("sealed_position", pa.int64()),
        ("rounding_micros", pa.int64()),  # null in documents of Stateside 0.1; missing in tables with no others
    ]
)
DEAD_LETTERS = pa.schema(
    [("offset", pa.int64())] + [(name, pa.string()) for name in ("id", "entity", "type", "reason")]
)
_NUMBERS = "quantity hugeint, events hugeint, amount_micros hugeint"
OPEN_ROWS = f"customer text, period_end_us bigint, type text, plan text, {_NUMBERS}"
ROLLUP_ROWS = f"period_end_us bigint, plan text, type text, {_NUMBERS}"


@dataclass(frozen=True, slots=True)
class LiveBatch:
    """The state of the live rows: batch, offset of the journal, watermark."""

    batch: int
    offset: int
    watermark_us: int


@dataclass(frozen=True, slots=True)
class Live:
    """The open rows, and their rollup by period, plan and type, as readers see them, from one snapshot."""

    standing: LiveBatch
    rows: Iterable[Row]
    rollups: Iterable[Row]


def take_live(ledger: Ledger, live: Live) -> None:
    """Load the rows and rollups."""
    standing = live.standing
    ledger.sql.execute("create or replace temp table standing (batch bigint, position bigint, watermark_us bigint)")
    ledger.sql.execute(
        "insert into standing values (?, ?, ?)", [standing.batch, standing.offset, standing.watermark_us]
    )
    insert_rows(ledger, "open_rows", OPEN_ROWS, live.rows)
    insert_rows(ledger, "rollup_rows", ROLLUP_ROWS, live.rollups)


def insert_rows(ledger: Ledger, table: str, columns: str, rows: Iterable[Row]) -> None:
    """Insert rows, as readers see them, in chunks into a new temporary table with these columns."""
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


def take_documents(ledger: Ledger, layout: Layout, standing: LiveBatch) -> None:
    """Load the documents and dead letters that belong to the live rows of `standing`.

    To be called after the live rows were read, with the ledger at their offset. NotFreshEnough if the offset lies
    inside a document's range.
    """
    ledger.sql.register("given", _read(layout.table("documents"), DOCUMENTS))
    ledger.sql.execute("""
        create or replace temp table stored as
        select * exclude (period_start, period_end),
               case when kind = 'invoice' then 'I' else 'N' end as series,
               kind <> 'invoice' or late as names_events,
               epoch_us(period_start) as period_start_us, epoch_us(period_end) as period_end_us
        from given
    """)
    _check_settled(ledger, layout, standing)
    ledger.sql.execute(f"""
        create or replace temp view documents as
        from stored where period_end_us <= {standing.watermark_us}
            and (sealed_position <= {standing.offset} or not names_events)
    """)
    ledger.sql.execute("""
        create or replace temp table lines as
        select number, kind, series, sequence, customer, period_end_us, currency, unnest(line)
        from (select *, unnest(lines) as line from documents)
    """)
    ledger.sql.register("given", _read(layout.table("dead_letters"), DEAD_LETTERS))
    ledger.sql.execute('create or replace temp table dead_letters as from given where "offset" < ?', [standing.offset])
    ledger.sql.unregister("given")


def stored_documents(layout: Layout) -> list[dict[str, Any]]:
    """All documents, without their lines, with times in microseconds."""
    given = _read(layout.table("documents"), DOCUMENTS)
    found = given if isinstance(given, pa.Table) else given.read_all()
    ends = found["period_end"].cast(_TIME).cast(pa.int64())
    rest = found.drop_columns(["lines", "event_ids", "period_start", "period_end"])
    return list(rest.append_column("period_end_us", ends).to_pylist())


def _check_settled(ledger: Ledger, layout: Layout, standing: LiveBatch) -> None:
    """NotFreshEnough if a document of a closed period has events both before the offset and beyond it.

    A query that was never started over leaves no such document; the laws judge documents beyond the journal's end.
    """
    end = open_journal(layout.journal).log().end().one()
    rows = ledger.rows(
        """
        with ahead as (from stored where period_end_us <= ? and sealed_position > ? and sealed_position <= ?),
        named as (select number, sealed_position, customer, period_end_us, unnest(event_ids) as id from ahead)
        select number, sealed_position from ahead where not names_events
        union all
        select number, sealed_position from named semi join seen using (id, customer, period_end_us)
        order by sealed_position desc limit 1
        """,
        standing.watermark_us,
        standing.offset,
        end,
    )
    for number, position in rows:
        raise NotFreshEnough(
            f"The rows stand at offset {standing.offset:,}, inside of what {number} has, which an earlier query sealed "
            f"up to offset {position:,}: the query was started again, and has not come as far yet",
            where=str(layout.table("documents")),
            next_step=f"Audit again once the rows stand at offset {position:,} or later",
        )


def _read(path: Path, schema: pa.Schema) -> Any:
    """The rows of a Delta table; empty if there is no table, which the laws judge."""
    if not DeltaTable.is_deltatable(str(path)):
        return schema.empty_table()
    # With deltalake's own Python file system, Arrow's threads may abort a process that ends soon afterwards.
    folder = pafs.SubTreeFileSystem(str(path.resolve()), pafs.LocalFileSystem())
    dataset = DeltaTable(path).to_pyarrow_dataset(filesystem=folder)
    nothing = {field.name: pc.scalar(pa.scalar(None, field.type)) for field in schema}
    columns = {name: pc.field(name) if name in dataset.schema.names else nothing[name] for name in schema.names}
    return dataset.scanner(columns=columns).to_reader()
