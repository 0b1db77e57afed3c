"""Rating against its simple counterpart, by hand, and that a replay of any part rates the same."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.billing.book.book import Book, BookKeeper
from stateside.billing.calendar import Cycle
from stateside.billing.model import assignment, clock_tick, usage
from stateside.billing.plans.file import CREDIT, PlanVersion, plan_event
from stateside.billing.plans.tiers import Tier, Tiers
from stateside.billing.rating.rating import RATED, REASONS, events_table, rate
from stateside.journal import Event, FileLog
from tests.billing.simple_rating import HOUR_US, Appends, SimpleBook, appends, events, rate_one
from tests.billing.test_book import journal_of, simple_book, write
from tests.sizes import examples

EXAMPLES = examples(15, 600)
DAY_US = 24 * HOUR_US
BASIC = PlanVersion(
    "basic",
    1,
    HOUR_US,
    "EUR",
    Cycle("month", "Europe/Berlin", 31),
    "half-even",
    {
        "call": Tiers((Tier(0, 0, 1), Tier(60, 90_000, 60))),
        "package:weekend": Tiers((Tier(0, 4_990_000, 1),)),
        "fee:base": Tiers((Tier(0, 9_990_000, 1),)),
        "credit": CREDIT,
    },
    ("base",),
)
PLUS = PlanVersion(
    "plus", 7, HOUR_US, "JPY", Cycle("week", "UTC"), "up", {"data": Tiers((Tier(0, 1, 9),)), "credit": CREDIT}
)


def check(rated: pa.Table, book: SimpleBook, journal: FileLog) -> None:
    assert rated.schema == RATED
    for row, (offset, event) in zip(rated.to_pylist(), enumerate(journal.events()), strict=True):
        reason, bill_type, version = rate_one(book, offset, event)
        assert (row["offset"], row["id"], row["customer"]) == (offset, event.id, event.entity)
        assert (row["reason"], row["type"]) == (reason, bill_type), (event, row)
        assert row["time"].timestamp() == pytest.approx(event.time_us / 1e6)
        if reason is None and version is not None:
            cycle = version.cycle
            assert (row["plan"], row["time_zone"]) == (version.id, cycle.time_zone)
            assert (row["cycle"], row["anchor_day"]) == (cycle.kind, cycle.anchor_day)
            assert row["quantity"] == event.payload["quantity"]
        else:
            assert row["plan"] is row["time_zone"] is row["cycle"] is row["anchor_day"] is None
        assert (row["detail"] is None) == (reason in (None, "reference"))


@settings(max_examples=EXAMPLES)
@given(appends(events))
def test_every_event_is_rated_as_the_simple_rating_says(frames: Appends) -> None:
    with journal_of(frames) as journal:
        end = journal.end()["0"]
        check(rate(events_table(journal, 0, end), BookKeeper(journal, None).at(end)), simple_book(journal), journal)


@settings(max_examples=EXAMPLES)
@given(appends(events), st.data())
def test_a_replay_of_any_part_rates_its_events_the_same(frames: Appends, data: st.DataObject) -> None:
    with journal_of(frames) as journal:
        end = journal.end()["0"]
        stop = data.draw(st.integers(0, end))
        start = data.draw(st.integers(0, stop))
        whole = rate(events_table(journal, 0, end), BookKeeper(journal, None).at(end))
        part = rate(events_table(journal, start, stop), BookKeeper(prefix(journal, stop), None).at(stop))
        assert part.to_pylist() == whole.slice(start, stop - start).to_pylist()


def prefix(journal: FileLog, stop: int) -> FileLog:
    """The journal as it was when it ended at an offset."""

    class Prefix(FileLog):
        def durable_end(self):  # type: ignore[no-untyped-def]
            end = super().durable_end()
            return type(end)(min(end.offset, stop), end.segment_offset, end.segment_bytes)

    return Prefix(journal.directory)


def test_rows_may_come_in_any_pieces() -> None:
    frames: Appends = [(0, [plan_event(BASIC, "p", 0), assignment("a", "emma", "basic", 0, 0)]), (2 * HOUR_US, USAGES)]
    with journal_of(frames) as journal:
        end = journal.end()["0"]
        table = events_table(journal, 0, end)
        book = BookKeeper(journal, None).at(end)
        expected = rate(table, book).to_pylist()
        pieces = pa.concat_tables([table.slice(at, 1) for at in range(table.num_rows)])
        assert rate(pieces, book).to_pylist() == expected
        assert rate(table.combine_chunks(), book).to_pylist() == expected
        large = table.set_column(2, "entity", table["entity"].cast(pa.large_string()))
        assert rate(large, book).to_pylist() == expected
        assert rate(table.slice(0, 0), book).num_rows == 0


USAGES = [
    usage("u1", "emma", "call", 2 * HOUR_US, 90),
    usage("u2", "emma", "package", 2 * HOUR_US, 1, name="weekend"),
    usage("u3", "emma", "credit", 2 * HOUR_US, 5, currency="EUR"),
]


def test_no_events_are_rated_by_an_empty_book(tmp_path: Path) -> None:
    journal = FileLog(tmp_path)
    rated = rate(events_table(journal, 0, 0), Book.empty())
    assert rated.schema == RATED
    assert rated.num_rows == 0


def test_a_book_that_does_not_cover_the_events_is_a_mistake_of_the_program(tmp_path: Path) -> None:
    journal = write(tmp_path, [(0, USAGES)])
    with pytest.raises(AssertionError, match="does not cover"):
        rate(events_table(journal, 0, 3), Book.empty())


def test_every_reason_by_hand(tmp_path: Path) -> None:
    now = 2 * HOUR_US
    frames: Appends = [
        (0, [plan_event(BASIC, "p1", 0), plan_event(PLUS, "p2", 0), plan_event(BASIC, "p3", 0)]),
        (0, [assignment("a1", "emma", "basic", 0, 0), assignment("a2", "omar", "plus", 0, 0)]),
        (0, [assignment("a3", "lena", "gold", 0, 0), assignment("a4", "emma", "plus", 5, 0)]),
        (
            now,
            [
                usage("u1", "emma", "call", now, 90),
                usage("u2", "emma", "package", now, 1, name="weekend"),
                usage("u3", "omar", "data", now, 90, currency="JPY"),
                clock_tick(now, "t1"),
                clock_tick(3 * HOUR_US + 1, "t2"),
                Event("u4", "emma", "fax", now, {"quantity": 1}),
                Event("u5", "emma", "call", now, {"seconds": 1}),
                Event("u6", "emma", "package", now, {"quantity": 1}),
                usage("u7", "emma", "call", 3 * HOUR_US + 1, 1),
                Event("u8", "emma", "call", now, {"quantity": -1}),
                Event("u9", "emma", "call", now, {"quantity": 10**9}),
                usage("u10", "nobody", "call", now, 1),
                usage("u11", "emma", "call", HOUR_US - 1, 1),
                usage("u12", "lena", "call", now, 1),
                usage("u13", "emma", "package", now, 1, name="night"),
                usage("u14", "emma", "data", now, 1),
                usage("u15", "emma", "credit", now, 1, currency="USD"),
                usage("u16", "emma", "call", 3 * HOUR_US, 1),
            ],
        ),
    ]
    journal = write(tmp_path, frames)
    end = journal.end()["0"]
    rated = rate(events_table(journal, 0, end), BookKeeper(journal, None).at(end)).to_pylist()
    found = {row["id"]: (row["type"], row["plan"], row["reason"], row["detail"]) for row in rated}
    at = "1970-01-01 02:00:00.000000Z"
    earliest = f"{HOUR_US} is the earliest allowed: an hour on, and after the one before"
    assert found == {
        "p1": ("plan", None, "reference", None),
        "p2": ("plan", None, "reference", None),
        "p3": ("plan", None, "plan-refused", "There is already version 1 of 'basic'; 1 is not higher"),
        "a1": ("assign", None, "reference", None),
        "a2": ("assign", None, "reference", None),
        "a3": ("assign", None, "reference", None),
        "a4": ("assign", None, "assign-refused", f"It takes effect at 5, {earliest}"),
        "u1": ("call", "basic@1", None, None),
        "u2": ("package:weekend", "basic@1", None, None),
        "u3": ("data", "plus@7", None, None),
        "t1": ("clock", None, None, None),
        "t2": ("clock", None, "future-dated",
               f"Its time 1970-01-01 03:00:00.000001Z lies more than 1 h after its append at {at}"),
        "u4": ("fax", None, "unknown-type",
               "fax is no type of usage: there are call, message, data, package, fee, credit"),
        "u5": ("call", None, "malformed", "call needs a payload with a whole `quantity`, of packages and fees a "
               "`name`; read were quantity null, name null"),
        "u6": ("package", None, "malformed", "package needs a payload with a whole `quantity`, of packages and fees a "
               "`name`; read were quantity 1, name null"),
        "u7": ("call", None, "future-dated",
               f"Its time 1970-01-01 03:00:00.000001Z lies more than 1 h after its append at {at}"),
        "u8": ("call", None, "negative-quantity", "The quantity -1 is below 0"),
        "u9": ("call", None, "absurd-quantity",
               "A quantity of 1000000000 is more than 2678400 seconds in one event"),
        "u10": ("call", None, "unknown-customer", f"nobody was assigned to no plan for {at} when the event came in"),
        "u11": ("call", None, "unknown-plan", "The plan of emma had no version for 1970-01-01 00:59:59.999999Z "
                "when the event came in"),
        "u12": ("call", None, "unknown-plan", f"The plan of lena had no version for {at} when the event came in"),
        "u13": ("package:night", None, "not-in-plan", "basic@1 has no price for package:night"),
        "u14": ("data", None, "not-in-plan", "basic@1 has no price for data"),
        "u15": ("credit", None, "wrong-currency", "The event says USD, basic@1 has EUR"),
        "u16": ("call", "basic@1", None, None),
    }  # fmt: skip
    assert {reason for _, _, reason, _ in found.values()} - {None} == set(REASONS)


def test_a_change_of_plan_in_mid_period_makes_lines_of_both_each_with_its_own_allowance(tmp_path: Path) -> None:
    """Emma's January begins on 2025-12-31; on the 15th she changes from 60 s free to 30 s free, and 0.09 to 0.12."""
    begin, change, end = (1_767_135_600 * 10**6, 1_768_431_600 * 10**6, 1_769_814_000 * 10**6)
    cycle = Cycle("month", "Europe/Berlin", 31)
    assert (cycle.containing(change).start_us, cycle.containing(change).end_us) == (begin, end)
    dearer = {"call": Tiers((Tier(0, 0, 1), Tier(30, 120_000, 60))), "credit": CREDIT}
    gold = PlanVersion("gold", 1, begin + HOUR_US, "EUR", cycle, "half-even", dearer)
    basic = PlanVersion("basic", 1, begin, "EUR", cycle, "half-even", BASIC.prices)
    frames: Appends = [
        (begin - HOUR_US, [plan_event(basic, "p1", begin), assignment("a1", "emma", "basic", begin, begin)]),
        (begin, [plan_event(gold, "p2", begin), assignment("a2", "emma", "gold", change, begin)]),
        (change, [usage("u1", "emma", "call", begin, 50), usage("u2", "emma", "call", change - 1, 40)]),
        (change, [usage("u3", "emma", "call", change, 50), usage("u4", "emma", "call", change + 1, 41)]),
    ]
    journal = write(tmp_path, frames)
    book = BookKeeper(journal, None).at(8)
    rated = rate(events_table(journal, 0, 8), book)
    counted = rated.filter(pa.compute.is_null(rated["reason"]))
    sums = {row["plan"]: row["quantity_sum"] for row in
            counted.group_by(["customer", "type", "plan"]).aggregate([("quantity", "sum")]).to_pylist()}  # fmt: skip
    assert sums == {"basic@1": 90, "gold@1": 91}
    amounts = {plan: book.plans[plan].amount_micros("call", quantity) for plan, quantity in sums.items()}
    assert amounts == {"basic@1": 45_000, "gold@1": 122_000}  # 30 s of 0.09 a minute; 61 s of 0.12 a minute


def test_customers_of_two_time_zones_and_currencies_are_rated_each_by_their_own(tmp_path: Path) -> None:
    new_york = PlanVersion(
        "prairie", 1, HOUR_US, "USD", Cycle("month", "America/New_York"), "half-up", BASIC.prices, BASIC.fees
    )
    new_year_us = 1_767_225_600 * 10**6  # 2026-01-01 00:00 UTC: in Berlin January, in New York still December
    frames: Appends = [
        (0, [plan_event(BASIC, "p1", 0), plan_event(new_york, "p2", 0)]),
        (0, [assignment("a1", "emma", "basic", 0, 0), assignment("a2", "walt", "prairie", 0, 0)]),
        (new_year_us, [usage("u1", "emma", "fee", new_year_us, 1, name="base", currency="EUR")]),
        (new_year_us, [usage("u2", "walt", "fee", new_year_us, 1, name="base", currency="USD")]),
        (new_year_us, [usage("u3", "walt", "credit", new_year_us, 1, currency="EUR")]),
    ]
    journal = write(tmp_path, frames)
    book = BookKeeper(journal, None).at(7)
    emma, walt, wrong = rate(events_table(journal, 4, 7), book).to_pylist()
    assert (emma["plan"], emma["time_zone"], emma["anchor_day"]) == ("basic@1", "Europe/Berlin", 31)
    assert (walt["plan"], walt["time_zone"], walt["anchor_day"]) == ("prairie@1", "America/New_York", 1)
    assert wrong["reason"] == "wrong-currency"
    periods = [book.plans[row["plan"]].cycle.containing(new_year_us).label for row in (emma, walt)]
    assert periods == ["2025-12@31", "2025-12"]
