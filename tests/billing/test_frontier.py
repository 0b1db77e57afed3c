"""The frontier: every event is in one document, whichever queries sealed it, with whatever batches."""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from stateside.billing.invoicing.invoice_sink import Corner, Frontier
from tests.sizes import examples

PERIOD = 10
GRACE = 7


def end_of(time: int) -> int:
    return (time // PERIOD + 1) * PERIOD


@dataclass
class Documents:
    """What is stored: offsets of events, and the frontier, which is read from counters each time."""

    journal: list[int]  # the events' times
    stored: list[int] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    def seal(self, query: Query, rows: dict[int, set[int]], start: int) -> None:
        """What `BillingSink` does, with events in place of quantities."""
        frontier = Frontier.of(self.counters)
        closed = max(query.watermark_before, frontier.closed_us)
        swept = range(frontier.sweep_from(start, query.watermark_before), query.position)
        ends = np.array([end_of(self.journal[offset]) for offset in swept], np.int64)
        late = (ends <= closed) & ~frontier.covers(np.array(swept, np.int64), ends)
        new = [offset for offset, is_late in zip(swept, late, strict=True) if is_late]
        new += [offset for end, offsets in rows.items() if end > closed for offset in offsets]
        if new:
            self.stored += new
            self.counters |= frontier.moved(query.position, query.watermark).counters()


@dataclass
class Query:
    """Spark's rules, as `tests/semantics` pins them: what a batch folds, drops and emits."""

    position: int = 0
    watermark_before: int = 0
    watermark: int = 0
    newest: int = 0
    state: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def batch(self, documents: Documents, stop: int) -> None:
        self.watermark_before, self.watermark = self.watermark, max(self.watermark, self.newest - GRACE)
        start, self.position = self.position, stop
        for offset, time in enumerate(documents.journal[start:stop], start):
            self.newest = max(self.newest, time)
            if end_of(time) > self.watermark_before:
                self.state[end_of(time)].add(offset)
        closed = [end for end in self.state if end <= self.watermark]
        documents.seal(self, {end: self.state.pop(end) for end in closed}, start)


def run(journal: list[int], moves: list[tuple[int, int, int]]) -> None:
    """Queries that take batches in turn. A move: which saved query goes on, how far, where it is saved then."""
    documents = Documents(journal)
    saved = [Query(), Query(), Query()]
    for source, length, target in moves:
        query = deepcopy(saved[source])
        query.batch(documents, min(query.position + length, len(journal)))
        saved[target] = query
    last = saved[moves[-1][2] if moves else 0]
    while last.position < len(journal) or last.watermark < last.newest - GRACE:
        last.batch(documents, min(last.position + 3, len(journal)))
    check(documents)
    # A new query has all in one batch, and a second one, without data, that closes what can be closed.
    again = Query()
    again.batch(documents, len(journal))
    again.batch(documents, len(journal))
    check(documents)


def check(documents: Documents) -> None:
    """Once a query is through, each event of a closed period is stored, once, and no other."""
    frontier, journal = Frontier.of(documents.counters), documents.journal
    event(f"{len(frontier.corners)} corners")
    closed = max([frontier.closed_us, max(journal, default=0) - GRACE])
    assert sorted(documents.stored) == [offset for offset, time in enumerate(journal) if end_of(time) <= closed]


def arriving(steps: list[tuple[int, int]]) -> list[int]:
    """Times that go on by some steps, each event late by something."""
    return [max(0, sum(step for step, _ in steps[: number + 1]) - late) for number, (_, late) in enumerate(steps)]


delays = st.sampled_from([0, 0, 0, 3, 12, 25])
journals = st.lists(st.tuples(st.integers(0, 9), delays), min_size=5, max_size=30).map(arriving)
lengths = st.sampled_from([0, 1, 1, 2, 5, 12])
moves = st.lists(st.tuples(st.integers(0, 2), lengths, st.integers(0, 2)), max_size=16)


@settings(max_examples=examples(150, 2_000))
@given(journals, moves)
@example([0, 12, 20, 30, 5], [(0, 3, 0), (0, 2, 0), (1, 3, 1), (1, 1, 1), (1, 0, 1), (1, 1, 1)]).via("two corners")
@example([0, 12, 20, 30, 12], [(0, 5, 0), (1, 3, 1), (1, 1, 1), (1, 0, 1), (0, 0, 0)]).via("one has read ahead")
def test_crashes_rollbacks_and_new_queries_in_any_order_store_each_closed_event_once(
    journal: list[int], moves: list[tuple[int, int, int]]
) -> None:
    """The guard against doubles and losses, which `BillingSink` relies on alone.

    It fails if `covers` covers nothing, if `closed_us` is 0 or `sweep_from` the batch's start, or if `moved` keeps the
    newest corner only: all four were tried.
    """
    run(journal, moves)


corners = st.builds(Corner, st.integers(0, 20), st.integers(0, 20))


@given(st.lists(corners, max_size=6))
def test_a_frontier_is_read_from_its_counters_also_where_older_ones_were_longer(moved: list[Corner]) -> None:
    counters: dict[str, int] = {}
    frontier = Frontier()
    for corner in moved:
        frontier = frontier.moved(corner.position, corner.closed_us)
        counters |= frontier.counters()
        assert Frontier.of(counters) == frontier
        positions = [corner.position for corner in frontier.corners]
        closed = [corner.closed_us for corner in frontier.corners]
        assert positions == sorted(set(positions), reverse=True)
        assert closed == sorted(set(closed))


def test_without_documents_nothing_is_closed_or_covered() -> None:
    frontier = Frontier()
    assert (frontier.closed_us, frontier.position, frontier.sweep_from(5, 0)) == (0, 0, 5)
    assert not frontier.covers(np.array([0]), np.array([0])).any()
