"""An id that comes again when its period is closed: not billed again, and a dead letter, whatever crashes."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from stateside.billing.answers.letters import DeadLetterReader, replay
from stateside.billing.invoicing import repeats
from stateside.billing.model import clock_tick
from stateside.core.errors import RequestInvalid
from stateside.core.layout import Layout
from tests.billing.audit.test_played import audited
from tests.billing.played import Crash, Query, append, crash_at, documents, sink
from tests.billing.story import OPENING, at, call
from tests.sizes import not_in_fast, sized

BATCHES = [
    ("2025-12-01", OPENING),
    (
        "2026-01-10",
        [
            call("1", "emma", "2026-01-10", 98),
            call("2", "noah", "2026-01-09", 103),
            call("3", "nobody", "2026-01-10", 5),  # a dead letter: another event may have its id
        ],
    ),
    ("2026-02-10", [clock_tick(at("2026-02-10"), "c0")]),
    ("2026-02-11", [clock_tick(at("2026-02-11"), "c1"), call("1", "emma", "2026-01-10", 98)]),  # in time, and dropped
    (
        "2026-02-12",  # January is sealed
        [
            call("1", "emma", "2026-01-10", 98),
            call("2", "noah", "2026-01-09", 104),
            call("3", "emma", "2026-01-11", 7),
            call("4", "emma", "2026-01-12", 3),
        ],
    ),
    ("2026-02-13", [call("4", "emma", "2026-01-12", 3), call("3", "emma", "2026-01-11", 7)]),
    ("2026-02-14", [clock_tick(at("2026-02-14"), "c2")]),
]
ENDS = [sum(len(events) for _, events in BATCHES[: number + 1]) for number in range(len(BATCHES))]
LETTERS = [
    (7, "3", "unknown-customer"),
    (11, "1", "repeated"),
    (12, "2", "id-conflict"),
    (15, "4", "repeated"),
    (16, "3", "repeated"),
]


@pytest.fixture
def story(layout: Layout) -> Layout:
    append(layout, [(at(day), event) for day, events in BATCHES for event in events])
    return layout


def letters(layout: Layout) -> list[tuple[Any, ...]]:
    rows = sink(layout).dead_letters.read().sort_by("offset").to_pylist()
    return [(row["offset"], row["id"], row["reason"]) for row in rows]


def check(query: Query) -> None:
    assert letters(query.layout) == LETTERS
    billed = {(found["kind"], found["customer"]): found["events"] for found in documents(query.layout)}
    assert billed == {("invoice", "emma"): 1, ("invoice", "noah"): 1, ("debit-note", "emma"): 2}
    assert audited(query).differences() == []


@not_in_fast("an audit at every batch")
def test_it_is_not_billed_again_and_says_where_the_first_one_stands(story: Layout) -> None:
    query = Query(story)
    for end in ENDS:
        query = query.run(end)
        assert audited(query).differences() == []
    check(query)
    details = {row["offset"]: row["detail"] for row in sink(story).dead_letters.read().to_pylist()}
    assert details[11] == "The same event stands at offset 5, and counts there"
    assert details[12] == "Another event with this id stands at offset 6, and counts"
    assert details[16] == "The same event stands at offset 13, and counts there"


@pytest.mark.parametrize("step", sized([4, 5, 6], range(1, 8)))
def test_a_crash_of_each_batch_and_its_rerun_change_nothing(story: Layout, step: int) -> None:
    query = Query(story)
    for end in ENDS:
        with pytest.raises(Crash):
            query.run(end, crash_at(step))
        query = query.run(end)
    check(query)


@not_in_fast("a whole story; one with crashes is here")
def test_the_index_may_be_deleted_and_is_written_in_parts(story: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "WRITTEN_AT_ONCE", 2)
    query = Query(story)
    for end in ENDS:
        query = query.run(end)
        shutil.rmtree(story.view("bill").root / "ids", ignore_errors=True)
    check(query)


def test_a_query_that_begins_anew_stores_no_letter_twice(story: Layout) -> None:
    query = Query(story)
    for end in ENDS:
        query = query.run(end)
    shutil.rmtree(story.view("bill").checkpoint)
    query = Query(story, id="another")
    for end in (*ENDS[2::2], ENDS[-1]):
        query = query.run(end)
    assert letters(story) == LETTERS
    assert len(documents(story)) == 3


def test_it_cannot_be_replayed_which_would_bill_it_twice(story: Layout) -> None:
    query = Query(story)
    for end in ENDS:
        query = query.run(end)
    found = DeadLetterReader.of(story).get(11)
    assert found is not None
    with pytest.raises(RequestInvalid, match="repeats an event that counts"):
        replay(story, [found], {})
