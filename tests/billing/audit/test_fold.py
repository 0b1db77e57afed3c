"""How the auditor judges an event, by itself: reasons, plans in effect, periods, duplicates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stateside.billing.audit import fold as folding
from stateside.billing.audit.fold import fold
from stateside.billing.audit.ledger import Ledger
from stateside.core.layout import Layout
from stateside.journal import Event, FileLog
from tests.billing.audit.books import HOUR_US, NIPPON, Pen, assign, plan, right_books, us, used
from tests.sizes import not_in_fast, sized

NOW = "2026-01-20T00:00"


def fold_all(folder: Path) -> Ledger:
    journal = FileLog(Layout(folder).journal)
    ledger = Ledger(folder / "audit")
    fold(ledger, journal, journal.end()["0"])
    return ledger


def sums(ledger: Ledger) -> dict[tuple[str, str, str, str], tuple[int, int]]:
    """Quantity and events by customer, end of the period in UTC, type, plan."""
    rows = ledger.rows(
        "select customer, strftime(make_timestamp(period_end_us), '%Y-%m-%dT%H'), type, plan, quantity, events"
        " from accounts order by all"
    )
    return {(*row[:4],): (row[4], row[5]) for row in rows}


@pytest.fixture
def pen(tmp_path: Path) -> Pen:
    """A journal in which emma has the plan `basic`."""
    pen = Pen(Layout(tmp_path))
    pen.append("2025-12-01T00:00", Event("p", "basic", "plan", 0, plan("basic")), assign("a", "emma", "basic"))
    return pen


REASONS: dict[str, list[Event]] = {
    "malformed": [
        Event("1", "emma", "call", us(NOW), {}),
        used("2", "emma", "call", NOW, 1.0),
        used("3", "emma", "call", NOW, True),
        used("4", "emma", "call", NOW, None),
        used("5", "emma", "call", NOW, "1"),
        used("6", "emma", "call", NOW, 2**63),
        used("7", "emma", "call", NOW, 2**64),
        used("8", "emma", "call", NOW, 1, name=1),
        used("9", "emma", "call", NOW, 1, currency=["EUR"]),
        used("10", "emma", "package", NOW, 1),
        used("11", "emma", "fee", NOW, 1, name=None),
        used("12", "emma", "package", NOW, 1, name=""),
    ],
    "unknown-type": [used("1", "emma", "fax", NOW, 1), used("2", "nobody", "Call", NOW, -1)],
    "unknown-customer": [used("1", "ben", "call", NOW, 1)],
    "unknown-plan": [used("1", "emma", "call", "2025-12-01T00:59:59.999999", 1)],
    "not-in-plan": [used("1", "emma", "data", NOW, 1), used("2", "emma", "package", NOW, 1, name="holiday")],
    "negative-quantity": [used("1", "emma", "call", NOW, -1), used("2", "emma", "credit", NOW, -(2**63))],
    "absurd-quantity": [
        used("1", "emma", "call", NOW, 31 * 86_400 + 1),
        used("2", "emma", "message", NOW, 100_001),
        used("3", "emma", "package", NOW, 1_001, name="weekend"),
        used("4", "emma", "fee", NOW, 2, name="base"),
        used("5", "emma", "credit", NOW, 10**12 + 1),
        used("6", "emma", "call", NOW, 2**63 - 1),
    ],
    "future-dated": [used("1", "emma", "call", "2026-01-20T01:00:00.000001", 1)],
    "wrong-currency": [used("1", "emma", "call", NOW, 1, currency="USD")],
}


@pytest.mark.parametrize("reason", REASONS)
def test_an_event_that_is_bad_counts_nothing_and_has_the_reason(pen: Pen, tmp_path: Path, reason: str) -> None:
    pen.append(NOW, *REASONS[reason])
    with fold_all(tmp_path) as ledger:
        found = ledger.rows('select "offset", id, reason from bad order by 1')
        assert found == [(2 + place, event.id, reason) for place, event in enumerate(REASONS[reason])]
        assert sums(ledger) == {}


def test_events_at_the_limits_count(pen: Pen, tmp_path: Path) -> None:
    pen.append(
        NOW,
        used("1", "emma", "call", "2026-01-20T01:00", 31 * 86_400),
        used("2", "emma", "message", "2025-12-01T01:00", 100_000, name=None),
        used("3", "emma", "package", NOW, 1_000, name="weekend", currency="EUR"),
        used("4", "emma", "fee", NOW, 0, name="base", currency=None, other=[1]),
    )
    with fold_all(tmp_path) as ledger:
        assert ledger.rows("from bad") == []
        assert sums(ledger) == {
            ("emma", "2025-12-31T23", "message", "basic@1"): (100_000, 1),
            ("emma", "2026-01-31T23", "call", "basic@1"): (2_678_400, 1),
            ("emma", "2026-01-31T23", "fee:base", "basic@1"): (0, 1),
            ("emma", "2026-01-31T23", "package:weekend", "basic@1"): (1_000, 1),
        }


def test_only_the_first_good_event_of_an_id_counts(pen: Pen, tmp_path: Path) -> None:
    """A bad one does not use its id up: that is how a mended dead letter comes in."""
    pen.append(NOW, used("x", "emma", "call", NOW, -1), used("x", "emma", "call", NOW, 1))
    pen.append(NOW, used("x", "emma", "call", NOW, 2), used("x", "emma", "message", "2025-12-20T00:00", 3))
    with fold_all(tmp_path) as ledger:
        assert ledger.rows('select "offset", reason from bad') == [(2, "negative-quantity")]
        assert ledger.rows('select "offset", first_offset from duplicates order by 1') == [(4, 3), (5, 3)]
        assert sums(ledger) == {("emma", "2026-01-31T23", "call", "basic@1"): (1, 1)}


def test_a_change_of_plan_in_mid_period_gives_sums_of_both_versions(pen: Pen, tmp_path: Path) -> None:
    later = us("2026-01-15T12:00")
    pen.append("2026-01-10T00:00", Event("p2", "basic", "plan", 0, plan("basic", version=2, effective_us=later)))
    for number, time in enumerate(("2026-01-15T11:59:59.999999", "2026-01-15T12:00", "2026-01-15T12:00:01")):
        pen.append(NOW, used(f"u{number}", "emma", "call", time, 10**number))
    with fold_all(tmp_path) as ledger:
        assert sums(ledger) == {
            ("emma", "2026-01-31T23", "call", "basic@1"): (1, 1),
            ("emma", "2026-01-31T23", "call", "basic@2"): (110, 2),
        }


def test_an_assignment_counts_for_what_stands_behind_it_and_from_its_time_on(pen: Pen, tmp_path: Path) -> None:
    pen.append("2025-12-01T00:00", Event("n", "nippon", "plan", 0, plan("nippon", **NIPPON)))
    pen.append(NOW, used("1", "ben", "call", NOW, 1))  # nobody knows ben yet
    pen.append(NOW, assign("b", "ben", "basic", us("2026-01-19T00:00")))
    pen.append(NOW, used("2", "ben", "call", "2026-01-18T23:59:59.999999", 2), used("3", "ben", "call", NOW, 4))
    pen.append(NOW, assign("b2", "ben", "nippon", us(NOW) + HOUR_US))
    pen.append("2026-01-20T01:00", used("4", "ben", "call", "2026-01-20T00:59", 8))
    pen.append("2026-01-20T01:00", used("5", "ben", "data", "2026-01-20T01:00", 16))
    with fold_all(tmp_path) as ledger:
        assert ledger.rows("select id, reason from bad order by 1") == [
            ("1", "unknown-customer"),
            ("2", "unknown-customer"),
        ]
        assert sums(ledger) == {
            ("ben", "2026-01-31T23", "call", "basic@1"): (12, 2),
            ("ben", "2026-02-14T15", "data", "nippon@1"): (16, 1),
        }


def _changed(**changes: Any) -> dict[str, Any]:
    return plan("basic", version=2, effective_us=us(NOW) + HOUR_US) | changes


PRICES = plan("basic")["prices"]
CYCLE = plan("basic")["cycle"]
REFUSED_PLANS = {
    "an old number": _changed(version=1),
    "no number": _changed(version="2"),
    "too early": _changed(effective_us=us(NOW) + HOUR_US - 1),
    "another plan": _changed(plan="plus"),
    "no currency": _changed(currency="XXX"),
    "no rule": _changed(rounding="up and down"),
    "no zone": _changed(cycle=CYCLE | {"time_zone": "Europe/Atlantis"}),
    "no cycle": _changed(cycle=CYCLE | {"kind": "moon"}),
    "no anchor": _changed(cycle=CYCLE | {"anchor_day": 32}),
    "an anchor of weeks": _changed(cycle=CYCLE | {"kind": "week", "anchor_day": 2}),
    "no credit": _changed(prices={"call": [[0, 1, 1]]}),
    "credit of another worth": _changed(prices=PRICES | {"credit": [[0, -2, 1]]}),
    "no usage": _changed(prices=PRICES | {"fax": [[0, 1, 1]]}),
    "a package without a name": _changed(prices=PRICES | {"package": [[0, 1, 1]]}),
    "a call with a name": _changed(prices=PRICES | {"call:home": [[0, 1, 1]]}),
    "tiers that begin above 0": _changed(prices=PRICES | {"call": [[1, 1, 1]]}),
    "tiers that fall": _changed(prices=PRICES | {"call": [[0, 1, 1], [9, 1, 1], [5, 1, 1]]}),
    "no tiers": _changed(prices=PRICES | {"call": []}),
    "per nothing": _changed(prices=PRICES | {"call": [[0, 1, 0]]}),
    "a price below nothing": _changed(prices=PRICES | {"call": [[0, -1, 1]]}),
    "a price beyond all sense": _changed(prices=PRICES | {"fee:base": [[0, 10**15 + 1, 1]]}),
    "a fee without a price": _changed(fees=["base", "more"]),
    "nothing": {},
}


def test_a_plan_that_breaks_a_rule_is_refused_and_changes_nothing(pen: Pen, tmp_path: Path) -> None:
    pen.append(NOW, *(Event(name, "basic", "plan", 0, payload) for name, payload in REFUSED_PLANS.items()))
    with fold_all(tmp_path) as ledger:
        refused = [(2 + place, name, "plan-refused") for place, name in enumerate(REFUSED_PLANS)]
        assert ledger.rows('select "offset", id, reason from bad order by 1') == refused
        assert ledger.rows("select id from plans") == [("basic@1",)]


def test_a_version_that_is_right_is_taken(pen: Pen, tmp_path: Path) -> None:
    pen.append(NOW, Event("again", "basic", "plan", 0, _changed(prices=PRICES | {"fee:base": [[0, 10**15, 1]]})))
    with fold_all(tmp_path) as ledger:
        assert ledger.rows("select id from plans order by 1") == [("basic@1",), ("basic@2",)]


def test_an_assignment_that_breaks_a_rule_is_refused(pen: Pen, tmp_path: Path) -> None:
    late = us(NOW) + 9 * HOUR_US
    payloads = [{}, {"plan": "basic"}, {"plan": "", "effective_us": late}, {"plan": "basic", "effective_us": -1}]
    payloads.append({"plan": "basic", "effective_us": us(NOW) + HOUR_US - 1})
    pen.append(NOW, *(Event(f"bad{number}", "emma", "assign", 0, each) for number, each in enumerate(payloads)))
    pen.append(NOW, assign("good", "emma", "basic", late), assign("same", "emma", "basic", late))
    with fold_all(tmp_path) as ledger:
        refused = [id_ for (id_,) in ledger.rows("select id from bad where reason = 'assign-refused' order by 1")]
        assert refused == ["bad0", "bad1", "bad2", "bad3", "bad4", "same"]
        assert ledger.rows("select number, effective_us from assignments order by 1") == [(1, 0), (2, late)]


def test_the_fold_is_the_same_however_it_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk may end between an assignment and its event, or between an event and its repetition."""
    right_books(tmp_path)
    tables = ("seen", "accounts", "duplicates", "bad", "plans", "assignments", "periods")
    found = []
    for events in sized((7, 100), (1, 3, 7, 100)):
        monkeypatch.setattr(folding, "CHUNK_EVENTS", events)
        with fold_all(tmp_path) as ledger:
            found.append([ledger.rows(f"select * from {table} order by all") for table in tables])
            found[-1].append(ledger.rows("select position, clocks, time_us_max from fold"))
            ledger.begin_anew()
    assert all(each == found[0] for each in found)


@not_in_fast("a log that has grown is long")
def test_sums_are_added_up_when_their_log_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right_books(tmp_path)
    monkeypatch.setattr(folding, "CHUNK_EVENTS", 2)
    with fold_all(tmp_path) as ledger:
        before = ledger.rows("from accounts order by all")
    monkeypatch.setattr("stateside.billing.audit.ledger.LOG_ROWS_MIN", 1)
    with Ledger(tmp_path / "audit") as ledger:
        rows = ledger.one("select count(*) from sums")
        ledger.add_up()
        assert ledger.one("select count(*) from sums") == len(before) < rows
        assert ledger.rows("from accounts order by all") == before
        assert ledger.rows("from added_up") == [(len(before),)]


def test_a_range_of_a_topic_may_hold_no_event(tmp_path: Path) -> None:
    """Offsets of Kafka's transaction markers."""

    class Markers(FileLog):
        def batches(self, *_: Any, **__: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
            return iter(())

    with Ledger(tmp_path / "audit") as ledger:
        fold(ledger, Markers(Layout(tmp_path).journal), 3)
        assert ledger.rows("select position, events from fold") == [(3, 0)]
