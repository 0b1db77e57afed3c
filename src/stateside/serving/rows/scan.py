"""Scans: pages of a view's rows, filtered, in key order or in the order of a column; and the cursors between pages.

All pages of a query belong to the batch of the first page, read from the replica's history. A page in key order reads a
bounded number of rows: with a selective filter the page may be short or empty, and still have a cursor. A page in
column order reads all rows in the query's range, for every page, so the range is bounded and the limit is low.

A cursor is the place where the next page begins. A cursor gives access to nothing, because every page is answered
within the scope of its principal. A scoped token gets the cursor encrypted (`access.position_codec`), since the last
key that a page read may belong to another principal.

    cursor := base64url without padding of: 6 bytes of blake2b over the rest, JSON
    JSON   := {"v": 1, "view": …, "batch": …, "fingerprint": …, "after": key in hex, "question": hash}

`fingerprint` identifies the run of the batch; `after` is the last key that the page read.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Final

from stateside.core.errors import CursorInvalid, RequestInvalid
from stateside.serving.access.position_codec import PositionCodec
from stateside.serving.rows.columns import Found, Values
from stateside.serving.rows.floor import NEWEST, AsOf, Floor
from stateside.serving.rows.relation import Relation, RelationSnapshot
from stateside.serving.rows.row_query import RowQuery
from stateside.serving.stamp import Stamp
from stateside.spark_state.unsafe_row import Value

VERSION: Final = 1
_CHECK_BYTES = 6


@dataclass(frozen=True, slots=True)
class Cursor:
    """The view, batch and query of the next page, and the key after which the page begins."""

    view: str
    batch: int
    fingerprint: str
    after: bytes
    question: str

    def __str__(self) -> str:
        document = {"v": VERSION, **asdict(self), "after": self.after.hex()}
        content = json.dumps(document, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(_check(content) + content).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str, view: str, question: str) -> Cursor:
        """Parses a cursor; CursorInvalid if the text is damaged, or belongs to another view or query."""
        try:
            cursor = cls._parse(text)
        except (ValueError, LookupError, TypeError, RecursionError):
            raise _invalid("This is no cursor, or a damaged one") from None
        if (cursor.view, cursor.question) != (view, question):
            raise _invalid("This cursor belongs to another view or another question")
        return cursor

    @classmethod
    def _parse(cls, text: str) -> Cursor:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        check, content = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
        document: dict[str, Any] = json.loads(content)
        cursor = cls(
            view=str(document["view"]),
            batch=int(document["batch"]),
            fingerprint=str(document["fingerprint"]),
            after=bytes.fromhex(document["after"]),
            question=str(document["question"]),
        )
        if cursor.batch < 0 or check != _check(content) or str(cursor) != text:  # one canonical text per cursor
            raise ValueError(text)
        return cursor


def _check(content: bytes) -> bytes:
    return blake2b(content, digest_size=_CHECK_BYTES).digest()


def _invalid(what: str) -> CursorInvalid:
    return CursorInvalid(
        what, next_step="Give it as the page before had it, with the same question; or begin again, without it"
    )


ROWS_LOOKED_AT_MAX = 20_000  # per page in key order
ORDERED_ROWS_MAX = 200_000  # in the range of a query in column order


@dataclass(frozen=True, slots=True)
class ScanPage:
    """One page of rows, the stamp of the query's batch, and the cursor of the next page."""

    stamp: Stamp
    rows: list[dict[str, Any]]
    cursor: str | None


async def page(
    relation: Relation, question: RowQuery, floor: Floor, *, as_of: AsOf = NEWEST, cursor: str | None = None
) -> ScanPage:
    """The first page of a query or, with a cursor, the page where the cursor points.

    The floor applies to the first page only: later pages stay on its batch. CursorInvalid for a cursor of another
    query, HistoryGone once the replica's history has dropped the batch, AccessDenied for a key of another principal.
    """
    narrowed = partial(question.filter.narrowed, relation.table)
    key = narrowed(relation.scope.narrowed(narrowed(question.key)))  # a filter too may name another principal's key
    after, positions = None, floor.positions
    if cursor is not None:
        begun = Cursor.parse(positions.parse_cursor(cursor), relation.table.catalogue.view, question.digest())
        if as_of.batch not in (None, begun.batch):
            raise CursorInvalid(
                f"This cursor is of batch {begun.batch}, and {as_of.batch} was asked for",
                next_step="Ask with the cursor alone: it stays on its batch",
            )
        floor, as_of, after = Floor(wait_ms=floor.wait_ms), AsOf(begun.batch, begun.fingerprint), begun.after

    def read(at: RelationSnapshot) -> ScanPage:
        return _Scan(at, question, key, positions).page(after)

    long = question.order is not None or (question.source != "live" and not question.key)
    async with relation.reader.ordering if long else nullcontext():
        return await relation.read(floor, read, as_of, source=question.source, aside=True)


@dataclass(frozen=True, slots=True)
class _Scan:
    """A query in one snapshot."""

    at: RelationSnapshot
    question: RowQuery
    key: Sequence[Value]
    positions: PositionCodec

    def page(self, after: bytes | None) -> ScanPage:
        """The page after a key; the first page for None."""
        self.at.check_held(self.key, scattered=True)
        in_order = self._in_key_order if self.question.order is None else self._in_order
        rows, last = in_order(after)
        shown = [self.question.show(values) for values in rows]
        return ScanPage(self.at.stamp, shown, None if last is None else self._cursor(last))

    def _in_key_order(self, after: bytes | None) -> tuple[list[Values], bytes | None]:
        """Rows, and the last key read if more rows follow."""
        rows: list[Values] = []
        last = None
        for looked_at, (key, values) in enumerate(self._range(b"" if after is None else after + b"\x00")):
            if last is not None and (len(rows) == self.question.limit or looked_at == ROWS_LOOKED_AT_MAX):
                return rows, last
            last = key
            if self._wanted(values):
                rows.append(values)
        return rows, None

    def _in_order(self, after: bytes | None) -> tuple[list[Values], bytes | None]:
        """Like `_in_key_order`, in the query's order; the key is that of the last row returned."""
        order, limit = self.question.order, self.question.limit
        assert order is not None
        rows = self._all_rows()
        if after is not None:
            last = self._row_of(after)
            rows = (row for row in rows if order.is_behind(row, last))
        first = order.first(rows, limit + 1)
        return [values for _, values in first[:limit]], first[limit - 1][0] if len(first) > limit else None

    def _all_rows(self) -> Iterator[Found]:
        for looked_at, row in enumerate(self._range()):
            if looked_at == ORDERED_ROWS_MAX:
                raise RequestInvalid(
                    f"More than {ORDERED_ROWS_MAX:,} rows would have to be put in order",
                    next_step="Narrow them down by the key's first parts, ask in key order, or ask with SQL",
                )
            if self._wanted(row[1]):
                yield row

    def _row_of(self, key: bytes) -> Found:
        """The last row of the previous page, in the same batch."""
        found = next(self._range(key), None)
        if found is None or found[0] != key or not self._wanted(found[1]):
            raise CursorInvalid("The row that this cursor names is not there", next_step="Begin again, without it")
        return found

    def _range(self, begin: bytes = b"") -> Iterator[Found]:
        return self.at.range(self.key, begin)

    def _wanted(self, values: Values) -> bool:
        return self.at.scope.has(values) and self.question.filter.meets(values)

    def _cursor(self, last: bytes) -> str:
        batch = self.at.snapshot.batch()
        assert batch is not None, "a stamp was made of it"
        cursor = Cursor(self.at.stamp.view, batch.batch, batch.fingerprint, last, self.question.digest())
        return self.positions.cursor(str(cursor))
