"""Scans: a view's rows page by page, of one batch; over shards, merged into the order of a single server."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from stateside.core.errors import Misdirected, RequestInvalid
from stateside.serving.clients.answers import Answer, Row
from stateside.serving.clients.core import Whom
from stateside.serving.clients.requests import ClientFloor, Parameters, of_view
from stateside.serving.clients.shards import Rank, Shard, Shards, SharesChanged, by_column, by_key
from stateside.serving.clients.steps import Ask, Deliver, Steps, together
from stateside.serving.stamp import Stamp

PAGE_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class ScanQuestion:
    """The rows of a scan, their order, the page size, and the maximum number."""

    view: str
    key: Sequence[str]
    where: Sequence[str]
    order: str | None
    columns: Sequence[str] | None
    page_rows: int
    rows_max: int | None
    floor: ClientFloor
    source: str | None = None

    def ask(self, floor: ClientFloor, cursor: str | None = None, columns: Sequence[str] | None = None) -> Ask:
        """The request for a page."""
        more: list[tuple[str, str]] = [("where", condition) for condition in self.where]
        shown = columns or self.columns
        given = {"order": self.order, "columns": ",".join(shown) if shown else None, "source": self.source}
        more += [(name, value) for name, value in {**given, "cursor": cursor}.items() if value is not None]
        parameters: Parameters = (*more, ("limit", str(self.page_rows)))
        return of_view(self.view, "rows", self.key, floor, parameters)


@dataclass
class _Share:
    """The rows of one shard not yet delivered, and the cursor of its next page."""

    whom: Whom
    rows: deque[tuple[Any, Row]] = field(default_factory=deque)
    cursor: str | None = None
    begun: bool = False

    @property
    def ended(self) -> bool:
        return self.begun and self.cursor is None


class ClientScan:
    """One scan. Delivers its pages."""

    def __init__(self, places: Shards, question: ScanQuestion) -> None:
        if question.page_rows < 1 or (question.rows_max is not None and question.rows_max < 0):
            raise RequestInvalid("A page has at least one row, and a scan no fewer than none")
        self._places, self._question = places, question
        self._left = question.rows_max

    def pages(self) -> Steps[None]:
        deadline_s = self._places.core.deadline(self._question.ask(self._question.floor))
        begin = partial(self._begin, deadline_s)
        places, first = yield from self._places.anew(begin, SharesChanged, deadline_s)
        yield from self._of_one(places[0].whom) if len(places) == 1 else self._of_shares(places, first)

    def _begin(self, deadline_s: float) -> Steps[tuple[Sequence[Shard], Sequence[Answer]]]:
        """The shards with the rows; if several, also their first pages, of one batch where possible."""
        places = self._places.of(self._question.view, self._question.key)
        if len(places) == 1:
            return places, []
        asked = self._places.asked_of(places, self._first_page)
        try:
            first = yield from self._places.at_one_batch(asked, self._made, self._question.floor, deadline_s)
        except Misdirected as error:  # a predicate, or the token's scope, restricts the keys to one shard
            return [Shard(self._places.named_by(error))], []
        return places, first

    def _of_one(self, whom: Whom) -> Steps[None]:
        """Deliver the pages of one server."""
        cursor: str | None = None
        while True:
            ask = self._question.ask(self._question.floor, cursor)
            page: Answer = yield from self._places.core.read(ask, self._made, whom)
            cursor = page.cursor
            if (page.rows or cursor is None) and not (yield from self._deliver(page)):
                return
            if cursor is None:
                return

    def _of_shares(self, places: Sequence[Shard], first: Sequence[Answer]) -> Steps[None]:
        """Deliver the merged pages of all shards: a row is delivered once no shard can have an earlier one."""
        shares = [_Share(place.whom) for place in places]
        stamps, delivered = [page.stamp for page in first], False
        for share, page in zip(shares, first, strict=True):
            self._take(share, page)
        while True:
            behind = [share for share in shares if not share.rows and not share.ended]
            if behind:
                pages = yield from together([self._next_page(share) for share in behind])
                for share, page in zip(behind, pages, strict=True):
                    self._take(share, page)
                continue
            rows = self._merged(shares)
            ended = all(share.ended and not share.rows for share in shares)
            if (rows or not delivered) and not (yield from self._deliver(self._page(rows, stamps))):
                return
            if ended:
                return
            delivered = True

    def _page(self, rows: list[Row], stamps: Sequence[Stamp]) -> Answer:
        return Answer.together(rows, stamps, self._places.types(self._question.view))

    def _first_page(self, floor: ClientFloor) -> Ask:
        return self._question.ask(floor, None, self._fetched())

    def _next_page(self, share: _Share) -> Steps[Answer]:
        floor = replace(self._question.floor, min_position=None, max_age_ms=None, as_of=None)
        ask = self._question.ask(floor, share.cursor, self._fetched())
        return self._places.core.read(ask, self._made, share.whom)

    def _take(self, share: _Share, page: Answer) -> None:
        rank = self._rank()
        share.rows += [(rank(row), row) for row in page.rows]
        share.cursor, share.begun = page.cursor, True

    def _merged(self, shares: Sequence[_Share]) -> list[Row]:
        """Merged rows, up to the page size, or until a shard with further pages runs out of rows."""
        rows: list[Row] = []
        heads = [(share.rows[0][0], number) for number, share in enumerate(shares) if share.rows]
        heapq.heapify(heads)
        while heads and len(rows) < self._question.page_rows:
            _, number = heapq.heappop(heads)
            share = shares[number]
            rows.append(self._shown(share.rows.popleft()[1]))
            if share.rows:
                heapq.heappush(heads, (share.rows[0][0], number))
            elif not share.ended:
                break
        return rows

    def _deliver(self, page: Answer) -> Steps[bool]:
        """Deliver a page; returns whether the scan may continue."""
        if self._left is not None:
            page = page.first(self._left)
            self._left -= len(page.rows)
        yield Deliver(page)
        return self._left is None or self._left > 0

    def _rank(self) -> Rank:
        key, order = self._places.key(self._question.view), self._question.order
        if order is None:
            return by_key(key)
        return by_column(order, list(self._places.types(self._question.view).items()), key)

    def _fetched(self) -> Sequence[str] | None:
        """The columns to request from shards, including the columns needed for sorting."""
        if self._question.columns is None:
            return None
        order = [] if self._question.order is None else [self._question.order.removeprefix("-").split(".")[0]]
        key = [name for name, _ in self._places.key(self._question.view)]
        return list(dict.fromkeys([*self._question.columns, *key, *order]))

    def _shown(self, row: Row) -> Row:
        return row if self._question.columns is None else {name: row[name] for name in self._question.columns}

    def _made(self, document: Any) -> Answer:
        return Answer.of(document, self._places.types(self._question.view))
