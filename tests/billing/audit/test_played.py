"""What billing's own sink makes of a journal, with Spark's part played in Python, is right: the audit says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stateside.billing.audit import Audit, Live, LiveBatch, audit
from stateside.billing.book.book import BookKeeper
from stateside.core.layout import Layout
from stateside.journal import FileLog
from tests.billing.played import Query, append
from tests.billing.story import BATCHES, ENDS, at
from tests.sizes import not_in_fast, sized


def audited(query: Query) -> Audit:
    """An audit at the query's batch, of the rows that its state has."""
    plans = BookKeeper(FileLog(query.layout.journal), None).at(query.position).plans
    rows: list[dict[str, Any]] = []
    rollups: dict[tuple[str, str, str], dict[str, Any]] = {}
    for (customer, end_us, type_, plan), (quantity, events) in query.open.items():
        end = datetime.fromtimestamp(end_us / 1_000_000, UTC).isoformat()
        numbers = {"quantity": quantity, "events": events, "amount_micros": plans[plan].amount_micros(type_, quantity)}
        rows.append({"customer": customer, "period_end": end, "type": type_, "plan": plan, **numbers})
        empty = {"period_end": end, "plan": plan, "type": type_, **dict.fromkeys(numbers, 0)}
        rollup = rollups.setdefault((end, plan, type_), empty)
        rollup.update({name: rollup[name] + value for name, value in numbers.items()})
    standing = LiveBatch(query.batch, query.position, query.watermark_us)
    return audit(query.layout, nullcontext(Live(standing, rows, rollups.values())))


def after_every_batch(folder: Path, stops: Sequence[int]) -> Iterator[Query]:
    """The story's query after batches that end there, and after those without data that then are due."""
    layout = Layout(folder)
    append(layout, [(at(day), event) for day, events in BATCHES for event in events])
    query = Query(layout)
    for stop in [*stops, ENDS[-1], ENDS[-1]]:
        query = query.run(stop)
        yield query


ALL_STOPS = {"each append": ENDS, "every other append": ENDS[4::2], "one batch": []}


@not_in_fast("an audit at every batch; the laws are tried on finished books")
@pytest.mark.parametrize("stops", sized(["each append", "one batch"], list(ALL_STOPS)))
def test_the_books_of_a_story_are_right_after_every_batch(tmp_path: Path, stops: str) -> None:
    found = [audited(query) for query in after_every_batch(tmp_path, ALL_STOPS[stops])]
    assert [each.differences() for each in found] == [[]] * len(found)
    assert found[-1].counts["events"] == ENDS[-1]


@not_in_fast("a whole story")
def test_a_repetition_that_comes_when_the_period_is_closed_is_a_dead_letter(tmp_path: Path) -> None:
    """In batches of three, event 8 comes in time and its repetition, in the next batch, too late to be dropped."""
    *_, last = after_every_batch(tmp_path, range(3, ENDS[-1], 3))
    found = audited(last)
    assert found.differences() == []
    assert (found.counts["duplicates"], found.counts["dead_letters"]) == (0, 6)
