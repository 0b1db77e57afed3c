"""Dead letters for readers: counted, listed, and shown one by one, up to a position of the journal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stateside.archive import FollowedTable
from stateside.billing.invoicing.documents import DEAD_LETTERS
from stateside.billing.model import VIEW
from stateside.core import Layout
from stateside.core.errors import DocumentUnknown, RequestInvalid
from stateside.serving import iso_time

REPLAYED_MAX: Final = 100_000  # at once: one append, all or none
_COLUMNS: Final = ("offset", "id", "entity", "type", "time", "appended", "payload", "reason", "detail")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that breaks a rule of billing, as stored in the journal, and the reason."""

    offset: int
    id: str
    entity: str
    type: str
    time_us: int
    appended_us: int
    payload: str
    reason: str
    detail: str | None

    def as_dict(self) -> dict[str, Any]:
        """The dead letter as in an answer; the payload as JSON where valid."""
        return {
            "offset": self.offset,
            "reason": self.reason,
            "detail": self.detail,
            "id": self.id,
            "entity": self.entity,
            "type": self.type,
            "time": iso_time(self.time_us),
            "appended": iso_time(self.appended_us),
            "payload": _json_or_text(self.payload),
        }


class DeadLetterReader:
    """The dead letters of an application's folder; none before the first batch."""

    def __init__(self, table: FollowedTable) -> None:
        self._table = table

    @classmethod
    def of(cls, layout: Layout) -> DeadLetterReader:
        return cls(FollowedTable(layout.table(DEAD_LETTERS.name), layout.view(VIEW).mark(DEAD_LETTERS.name)))

    def counts(self, before: int | None = None) -> dict[str, int]:
        """The number of dead letters by reason."""
        found = self._table.read(["reason"], below=_below(before))
        return {} if found is None else dict(sorted(Counter(found["reason"].to_pylist()).items()))

    def page(
        self, *, after: int = -1, limit: int, reason: str | None = None, before: int | None = None
    ) -> list[DeadLetter]:
        """Up to `limit` dead letters with offsets above `after`, in the journal's order."""
        equal = {} if reason is None else {"reason": reason}
        found = self._table.read(_COLUMNS, below=_below(before), equal=equal)
        if found is None:
            return []
        rest = found.filter(pc.greater(found["offset"], after)).sort_by("offset").slice(0, limit)
        return [_letter(row) for row in _with_times(rest).to_pylist()]

    def get(self, offset: int, before: int | None = None) -> DeadLetter | None:
        """The dead letter at this offset of the journal, or None."""
        found = self._table.read(_COLUMNS, below=_below(before), equal={"offset": offset})
        rows = [] if found is None else _with_times(found).to_pylist()
        return _letter(rows[0]) if rows else None


def letters_to_replay(layout: Layout, offset: int | None, reason: str | None) -> list[DeadLetter]:
    """The dead letter at an offset, or all with a reason; DocumentUnknown if there is none."""
    letters = DeadLetterReader.of(layout)
    if offset is None:
        found = letters.page(limit=REPLAYED_MAX + 1, reason=reason)
    else:
        found = [letter for letter in [letters.get(offset)] if letter is not None]
    if not found:
        what = f"at offset {offset}" if offset is not None else f"with the reason {reason!r}"
        raise DocumentUnknown(f"There is no dead letter {what}", next_step="`stateside billing dead-letters list`")
    if len(found) > REPLAYED_MAX:
        raise RequestInvalid(f"More than {REPLAYED_MAX:,} dead letters have this reason: they are replayed one by one")
    return found


def _below(before: int | None) -> Mapping[str, int]:
    return {} if before is None else {"offset": before}


def _with_times(table: pa.Table) -> pa.Table:
    for name in ("time", "appended"):
        times = table[name].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        table = table.set_column(table.schema.get_field_index(name), f"{name}_us", times)
    return table


def _letter(row: Mapping[str, Any]) -> DeadLetter:
    return DeadLetter(**row)


def _json_or_text(payload: str) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return payload
