"""Reports on what rating found: whatever there is of them, the sweep finds the same, and documents are the same."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.billing.book.book import BookKeeper
from stateside.billing.invoicing import invoice_sink as sweep_module
from stateside.billing.invoicing.invoice_sink import Corner, Frontier, Planned, sweep
from stateside.billing.invoicing.repeats import Repeats
from stateside.billing.model import CLOCK, DAY_US, clock_tick
from stateside.billing.pipeline.source import Rater
from stateside.billing.rating import reports as reports_module
from stateside.billing.rating.rating import events_table, rate
from stateside.billing.rating.reports import NEVER_US, RatingReport, Reports, reports_of
from stateside.core.layout import Layout
from stateside.journal import Event, FileLog
from tests.billing.played import Crash, Query, append, crash_at
from tests.billing.story import BATCHES, ENDS, OPENING, at
from tests.billing.test_sink import AGAIN, DEAD, DEAD_LAST, EXPECTED, dead, told
from tests.sizes import examples, not_in_fast, some

REPORT = RatingReport(10, 20_010, (11, 12), 5)


@pytest.fixture
def story(layout: Layout) -> Layout:
    append(layout, [(at(day), event) for day, events in BATCHES for event in events])
    return layout


@pytest.fixture
def every_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have reports on few events too."""
    monkeypatch.setattr(reports_module, "EVENTS_MIN", 1)


def report(journal: FileLog, start: int, stop: int) -> RatingReport:
    book = BookKeeper(journal, None).at(stop)
    return RatingReport.of(rate(events_table(journal, start, stop), book), book)


def test_a_report_names_bad_events_and_the_end_of_the_first_period(story: Layout) -> None:
    journal = FileLog(story.journal)
    whole = report(journal, 0, ENDS[-1])
    assert whole.bad == tuple(offset for offset, *_ in [*DEAD, DEAD_LAST])
    assert whole.first_end_us == at("2026-01-31T23:00:00")
    assert report(journal, 0, len(OPENING)) == RatingReport(0, len(OPENING), (), NEVER_US)


def test_what_was_written_is_read_in_order_and_gone_when_it_is_cleared(tmp_path: Path) -> None:
    reports = Reports(tmp_path / "reports")
    assert reports.read("a") == []
    reports.clear()
    later = replace(REPORT, start=20_010, stop=40_000)
    for each in (later, REPORT, REPORT):
        reports.write(each, "a")
    assert reports.read("a") == [REPORT, later]
    (tmp_path / "reports" / ".half-written").write_bytes(b"half")
    reports.clear()
    assert not any((tmp_path / "reports").iterdir())


def test_few_events_and_many_bad_ones_are_not_reported(tmp_path: Path) -> None:
    reports = Reports(tmp_path)
    reports.write(replace(REPORT, stop=100), "a")
    reports.write(replace(REPORT, bad=tuple(range(10, 20_010))), "a")
    assert reports.read("a") == []


def test_a_folder_that_cannot_be_written_to_fails_no_task(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "reports").write_text("a file is in its place")
    Reports(tmp_path / "reports").write(REPORT, "a")
    assert "which are rated twice" in caplog.text


def _torn(content: bytes) -> bytes:
    return content[:-7]


def _changed(content: bytes) -> bytes:
    return content.replace(b"[11, 12]", b"[11, 13]")


def _empty(content: bytes) -> bytes:
    return b""


def _foreign(content: bytes) -> bytes:
    return b"\xff\xfe no report at all"


@pytest.mark.parametrize("spoil", [_torn, _changed, _empty, _foreign])
def test_a_report_that_is_not_as_it_was_written_is_passed_over(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    reports = Reports(tmp_path)
    reports.write(REPORT, "a")
    [path] = tmp_path.iterdir()
    path.write_bytes(spoil(path.read_bytes()))
    assert reports.read("a") == []


def test_a_report_on_another_journal_is_passed_over(tmp_path: Path) -> None:
    Reports(tmp_path).write(REPORT, "b")
    assert Reports(tmp_path).read("a") == []


events = st.lists(
    st.tuples(
        st.integers(0, 12),  # days since the last one
        st.sampled_from([0, 0, 2, 9, 40]),  # days that it is late
        st.sampled_from(["emma", "noah", "olga", "nobody"]),
        st.sampled_from(["call", "message", "credit", "nonsense", CLOCK]),
        st.integers(-20, 300),
    ),
    min_size=4,
    max_size=30,
)


@not_in_fast("a property over stories")
@settings(max_examples=examples(60, 1_000))
@given(events, st.data())
def test_with_any_reports_the_sweep_finds_what_it_finds_without(
    drawn: list[tuple[int, int, str, str, int]], data: st.DataObject
) -> None:
    """Of any ranges: of other attempts and other batches, some missing, some that overlap or reach beyond."""
    with tempfile.TemporaryDirectory() as folder:
        journal = append(Layout(Path(folder)), [*((at("2025-12-01"), event) for event in OPENING), *_events(drawn)])
        end = journal.end()["0"]
        offsets = st.integers(0, end)
        book = BookKeeper(journal, None).at(end)
        ranges = data.draw(st.lists(st.tuples(offsets, offsets).filter(lambda pair: pair[0] < pair[1]), max_size=8))
        cuts = [0, *sorted(data.draw(st.sets(offsets, max_size=6)) - {0, end}), end]
        made = [report(journal, *each) for each in [*ranges, *data.draw(st.permutations(list(pairwise(cuts))))]]
        start, stop = sorted(data.draw(st.tuples(offsets, offsets)))
        watermarks = st.integers(at("2025-12-20"), at("2026-06-01"))
        planned = Planned(start, stop, data.draw(st.just(0) | watermarks), 0)
        corner = Corner(data.draw(offsets), data.draw(watermarks))
        frontier = data.draw(st.sampled_from([Frontier(), Frontier((corner,))]))
        found, expected = (
            sweep(journal, book, planned, frontier, Repeats(Path(folder), journal), reports) for reports in (made, ())
        )
        assert found.late.equals(expected.late)
        assert found.bad.equals(expected.bad)


def _events(drawn: list[tuple[int, int, str, str, int]]) -> list[tuple[int, Event]]:
    now_us, made = at("2026-01-05"), []
    for number, (days, late_days, customer, type_, quantity) in enumerate(drawn):
        now_us += days * DAY_US
        time_us = max(now_us - late_days * DAY_US, at("2025-12-03"))
        bad_or_not = Event(f"{number % 9}", customer, type_, time_us, {"quantity": quantity})
        made.append((now_us, clock_tick(time_us, f"{number}") if type_ == CLOCK else bad_or_not))
    return made


def test_of_a_range_with_a_report_only_the_suspects_are_rated(story: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FileLog(story.journal)
    book = BookKeeper(journal, None).at(ENDS[-1])
    offsets: list[int] = []

    def noted(events: pa.Table, book: Any) -> Any:
        offsets.extend(events["offset"].to_pylist())
        return rate(events, book)

    monkeypatch.setattr(sweep_module, "rate", noted)
    planned = Planned(0, ENDS[-1], 0, 0)
    sweep(journal, book, planned, Frontier(), Repeats(story.root, journal), [report(journal, 0, ENDS[-1])])
    assert offsets == [offset for offset, *_ in [*DEAD, DEAD_LAST]]


def _leave_reports(layout: Layout, position: int, stop: int) -> None:
    """As the tasks of a batch do, two of them."""
    half = (position + stop) // 2
    for part in pairwise(sorted({position, half, stop})):
        list(Rater(layout.journal, layout.view("bill").root, with_ids=True).rows(*part))


@not_in_fast("a story with crashes")
@pytest.mark.usefixtures("every_range")
@pytest.mark.parametrize("step", some([2, 4, 5, 6, 7], 5))
def test_documents_are_the_same_with_reports_whatever_crashes_and_none_is_left(story: Layout, step: int) -> None:
    """Without the clearing in step 6 reports would pile up; a batch that crashes leaves its own, and they are right."""
    query = Query(story)
    for end in ENDS:
        position = query.position

        def on_step(reached: int, crash: int = 0, position: int = position, end: int = end) -> None:
            if reached == 1:
                _leave_reports(story, position, end)
            crash_at(crash)(reached)

        with pytest.raises(Crash):
            query.run(end, lambda reached, step=step, on_step=on_step: on_step(reached, step))  # type: ignore[misc]
        query = query.run(end, on_step)
        assert not any(reports_of(story.view("bill")).folder.iterdir())
    assert told(story) == EXPECTED
    assert dead(story) == [*DEAD, *AGAIN, DEAD_LAST]
