"""Repeats: late events with the id of an earlier event, stored as dead letters instead of billed again.

The running query drops a repeated id while its period is open, and forgets the id when the period closes. Late events
are therefore looked up in an index of the journal's ids, beside the view's checkpoint:

    ids/    an `index` (journal.index): for each id, the offset of the first event with this id

The index is derived from the journal alone, for every backend, and is extended to a batch's end when the batch has late
events; deleting the index is safe at any time. An event takes about 130 bytes. Ids of events dropped by retention
before the index had the ids are unknown.

Of several events with one id, the first without a broken rule of billing counts. A later one is `repeated` if its
content is the same (customer, type, time, payload), otherwise an `id-conflict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.book.book import Book
from stateside.billing.rating.rating import events_of, events_table, is_usage, joined, rate
from stateside.journal import Index, Log, hash_of, keeping

REPEATED: Final = "repeated"
ID_CONFLICT: Final = "id-conflict"
WRITTEN_AT_ONCE: Final = 50_000  # ids per write: some 10 MB of memory

_CONTENT: Final = ("entity", "type", "time", "payload")


class Repeats:
    """The index of one view's folder, for the driver's sink only."""

    def __init__(self, folder: Path, journal: Log) -> None:
        self._directory, self._journal = folder / "ids", journal

    def of(self, events: pa.Table, book: Book, stop: int) -> pa.Table:
        """The events (as from `events_table`) that repeat an earlier one, with `reason` and `detail`.

        The events are counted usage, before the offset `stop`; the book covers `stop`.
        """
        ids, offsets = (events[name].to_pylist() for name in ("id", "offset"))
        firsts = self._firsts(ids, stop) if ids else []
        later = {row: first for row, first in enumerate(firsts) if first is not None and first < offsets[row]}
        found = self._earlier({ids[row]: first for row, first in later.items()}, offsets, book)
        told = [_told(events, row, found.get(ids[row], ()), offsets[row]) for row in range(len(ids))]
        repeats = pa.array([each is not None for each in told], pa.bool_())
        reasons = pa.array([each for each in told if each is not None], pa.struct(list(_REASON.items())))
        table = events.filter(repeats)
        for number, field in enumerate(_REASON):
            table = table.append_column(field, reasons.field(number))
        return table

    def _firsts(self, ids: Sequence[str], stop: int) -> list[int | None]:
        """The offset of the first event with each id in the journal, searched at least up to `stop`."""
        self._directory.parent.mkdir(parents=True, exist_ok=True)
        with (
            keeping("ids of billed events", self._directory),
            Index(self._directory, "events", self._journal, max(stop, self._journal.end().one())) as index,
        ):
            recent: dict[bytes, int] = {}
            start = max(index.covers, self._journal.begin().one())
            for first, batch in self._journal.batches(start, stop) if start < stop else ():
                for offset, id_ in enumerate(batch.column("id").to_pylist(), first):
                    recent.setdefault(hash_of(id_), offset)
                if len(recent) >= WRITTEN_AT_ONCE:
                    index.write(recent.items(), first + batch.num_rows, overwrite=False)
                    recent = {}
            if recent:
                index.write(recent.items(), stop, overwrite=False)
            return index.numbers([hash_of(id_) for id_ in ids])

    def _earlier(self, firsts: Mapping[str, int], offsets: Sequence[int], book: Book) -> dict[str, list[pa.Table]]:
        """By id, the events that count, in order: the first event, or all others if the first does not count."""
        found: dict[str, list[pa.Table]] = {}
        counted = _counted(joined(events_table(self._journal, at, at + 1) for at in sorted(set(firsts.values()))), book)
        for row in _rows(counted):
            found[row["id"][0].as_py()] = [row]
        others = {id_: first for id_, first in firsts.items() if id_ not in found}
        if others:
            wanted = pa.array(sorted(others), pa.string())
            for events in self._with_ids(wanted, min(others.values()) + 1, max(offsets)):
                for row in _rows(_counted(events, book)):
                    found.setdefault(row["id"][0].as_py(), []).append(row)
        return found

    def _with_ids(self, wanted: pa.Array, start: int, stop: int) -> Iterator[pa.Table]:
        """The events of a range with one of these ids. Reads the whole range."""
        for first, batch in self._journal.batches(start, max(start, stop)):
            rows = pc.indices_nonzero(pc.is_in(batch.column("id"), wanted))
            if len(rows):
                yield events_of(batch.take(rows), rows.to_numpy().astype("int64") + first)


def _counted(events: pa.Table, book: Book) -> pa.Table:
    """The usage events that break no rule."""
    rated = rate(events, book)
    return events.filter(is_usage(rated))


def _rows(table: pa.Table) -> Iterator[pa.Table]:
    return (table.slice(row, 1) for row in range(table.num_rows))


def _told(events: pa.Table, row: int, earlier: Sequence[pa.Table], offset: int) -> dict[str, str] | None:
    """The reason why an event repeats an earlier one, or None."""
    before = [other for other in earlier if other["offset"][0].as_py() < offset]
    if not before:
        return None
    first, at = before[0], before[0]["offset"][0].as_py()
    if all(events[name][row] == first[name][0] for name in _CONTENT):
        return {"reason": REPEATED, "detail": f"The same event stands at offset {at}, and counts there"}
    return {"reason": ID_CONFLICT, "detail": f"Another event with this id stands at offset {at}, and counts"}


_REASON: Final = {"reason": pa.string(), "detail": pa.string()}
