"""Waiting: events that were read before the one that comes before them, and the gaps that they wait for.

Memory is bounded: what finds no room is forgotten, and its log read again from there when something has moved. The gaps
are remembered longer than the events, but not without end either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from stateside.journal.merge.gaps import Gap

BYTES_MAX = 64 << 20
GAPS_MAX = 10_000
_ROW_BYTES = 1_000  # what Python and Arrow take for a batch of one event beside its values


@dataclass(frozen=True, slots=True)
class Row:
    """An event that waits: where it stands, and itself."""

    log: str
    offset: int
    batch: pa.RecordBatch

    @property
    def bytes(self) -> int:
        """What it takes in memory, roughly."""
        return int(self.batch.nbytes) + _ROW_BYTES

    @property
    def appended_us(self) -> int:
        """When its node took it in."""
        return int(self.batch.column("appended")[0].value)


class Waiting:
    """The events that wait, by entity and sequence."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._rows: dict[str, dict[int, Row]] = {}
        self._since_us: dict[str, int] = {}
        self.forgotten: dict[str, int] = {}  # in each log the offset of the first event that found no room

    def __contains__(self, entity: str) -> bool:
        return entity in self._since_us

    def put(self, entity: str, sequence: int, row: Row) -> Row | None:
        """Let an event wait. Returns another one that waits as this entity's event of this sequence, if there is."""
        found = self._rows.get(entity, {}).get(sequence)
        if found is not None:
            return found if (found.log, found.offset) != (row.log, row.offset) else None
        if len(self._since_us) < GAPS_MAX:
            self._since_us[entity] = min(row.appended_us, self._since_us.get(entity, row.appended_us))
        if self._bytes + row.bytes > self._bytes_max or entity not in self._since_us:
            self.forgotten[row.log] = min(row.offset, self.forgotten.get(row.log, row.offset))
            return None
        self._rows.setdefault(entity, {})[sequence] = row
        self._bytes += row.bytes
        return None

    def take(self, entity: str, after: int) -> Iterator[Row]:
        """The entity's events that follow this sequence without a gap, which wait no longer."""
        rows = self._rows.get(entity, {})
        while (row := rows.pop(after + 1, None)) is not None:
            self._bytes -= row.bytes
            after += 1
            yield row
        if not rows:
            self._rows.pop(entity, None)
            self._since_us.pop(entity, None)

    def take_forgotten(self) -> dict[str, int]:
        """From where on each log must be read again; to be asked once."""
        forgotten, self.forgotten = self.forgotten, {}
        return forgotten

    def lowest(self) -> dict[str, int]:
        """In each log the offset of the first event that waits, here or forgotten."""
        found = dict(self.forgotten)
        for rows in self._rows.values():
            for row in rows.values():
                found[row.log] = min(row.offset, found.get(row.log, row.offset))
        return found

    def entities(self) -> list[str]:
        """The entities with a gap, those that wait for the longest first."""
        return sorted(self._since_us, key=self._since_us.__getitem__)

    def gaps(self, lasts: Mapping[str, int]) -> list[Gap]:
        """What is missing; `lasts` has the last merged sequence of each entity."""
        return [Gap(entity, lasts[entity] + 1, self._since_us[entity]) for entity in self.entities()]
