"""Dead letters: events that break a rule of billing, kept with the reason and the offset at which they stand.

The table's counter `position` says up to where the journal's dead letters are stored. Whether an event is one depends
on what stands before it in the journal and on nothing else: so a batch, of whatever query, stores those from there on.
Not so repeats (`repeats`), which depend on when their periods closed, too: they are looked for by their offsets.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from stateside.archive import ArchiveTable, TableSpec
from stateside.billing.model import VIEW
from stateside.billing.rating.rating import is_bad
from stateside.billing.sealing.documents import TIME
from stateside.layout import Layout

POSITION: Final = "position"

DEAD_LETTERS: Final = TableSpec(
    name="dead_letters",
    schema=pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("id", pa.string(), nullable=False),
            pa.field("entity", pa.string(), nullable=False),
            pa.field("type", pa.string(), nullable=False),
            pa.field("time", TIME, nullable=False),
            pa.field("appended", TIME, nullable=False),
            pa.field("payload", pa.string(), nullable=False),
            pa.field("reason", pa.string(), nullable=False),
            pa.field("detail", pa.string()),
        ]
    ),
    sealed=False,
)


def dead_letters_table(layout: Layout) -> ArchiveTable:
    """The dead letters of an application's folder."""
    return ArchiveTable(layout.table(DEAD_LETTERS.name), DEAD_LETTERS, layout.view(VIEW).mark(DEAD_LETTERS.name))


def dead_letters(events: pa.Table, rated: pa.Table) -> pa.Table:
    """Those of the events that rating gave a reason against, with it."""
    bad = is_bad(rated)
    table = events.filter(bad)
    for name in ("reason", "detail"):
        table = table.append_column(name, rated[name].filter(bad))
    return letters_of(table)


def letters_of(events: pa.Table) -> pa.Table:
    """Events that have a reason against them, as the table has them."""
    return events.select(DEAD_LETTERS.schema.names).cast(DEAD_LETTERS.schema)
