"""The auditor and the pipeline agree, though they share no code: on random journals, plans, times and amounts."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.billing import money as pipeline_money
from stateside.billing.audit.fold import (
    FUTURE_US_MAX,
    LATENESS_US,
    LATENESS_US_MAX,
    QUANTITY_MAX,
    AuditCycle,
    fold,
    periods,
    read_version,
)
from stateside.billing.audit.ledger import Ledger
from stateside.billing.audit.money_macros import MINOR_MICROS, TIERS_TYPE
from stateside.billing.book.book import BookKeeper
from stateside.billing.calendar import Cycle as PipelineCycle
from stateside.billing.model import FUTURE_US_MAX as PIPELINE_FUTURE_US_MAX
from stateside.billing.model import GRACE_US as PIPELINE_GRACE_US
from stateside.billing.model import LATENESS_US_MAX as PIPELINE_LATENESS_US_MAX
from stateside.billing.model import QUANTITY_MAX as PIPELINE_QUANTITY_MAX
from stateside.billing.plans.file import PlanVersion
from stateside.billing.plans.tiers import Tier, Tiers
from stateside.billing.rating.rating import events_table, rate
from tests.billing.audit.books import plan
from tests.billing.audit.test_calendar import CYCLES, TIMES
from tests.billing.simple_rating import Appends, appends, events
from tests.billing.test_book import write
from tests.sizes import examples, not_in_fast


def test_limits_and_currencies_are_the_same() -> None:
    assert QUANTITY_MAX == PIPELINE_QUANTITY_MAX
    assert (FUTURE_US_MAX, LATENESS_US) == (PIPELINE_FUTURE_US_MAX, PIPELINE_GRACE_US)
    assert LATENESS_US_MAX == PIPELINE_LATENESS_US_MAX
    assert {name: 10 ** (6 - digits) for name, digits in pipeline_money.DIGITS.items()} == MINOR_MICROS


def test_a_published_payload_is_read_as_it_was_meant() -> None:
    payload = PlanVersion.from_payload(plan("basic")).as_payload()
    found = read_version(json.dumps(payload))
    assert found is not None
    assert found["prices"]["call"] == [
        {"above": 0, "below": 6_000, "micros": 0, "per": 1},
        {"above": 6_000, "below": None, "micros": 90_000, "per": 60},
    ]


@given(CYCLES, TIMES)
def test_periods_are_the_same(cycle: AuditCycle, time_us: int) -> None:
    (mine,) = periods(cycle, time_us, time_us)
    theirs = PipelineCycle(cycle.kind, cycle.time_zone, cycle.anchor_day).containing(time_us)  # type: ignore[arg-type]
    assert (mine.label, mine.start_us, mine.end_us) == (theirs.label, theirs.start_us, theirs.end_us)


@not_in_fast("a property of two judges; each has its own tests")
@settings(max_examples=examples(10, 300), deadline=None)
@given(appends(events))
def test_every_event_is_judged_alike(frames: Appends) -> None:
    with TemporaryDirectory() as name:
        journal = write(Path(name) / "journal", frames)
        end = journal.end()["0"]
        book = BookKeeper(journal, None).at(end)
        rated = rate(events_table(journal, 0, end), book).to_pylist()
        with Ledger(Path(name) / "audit") as ledger:
            fold(ledger, journal, end)
            bad = dict(ledger.rows('select "offset", reason from bad'))
            accounts = {tuple(row[:4]): (row[4], row[5]) for row in ledger.rows("from accounts")}
    assert bad == {row["offset"]: row["reason"] for row in rated if row["reason"] not in (None, "reference")}
    expected: dict[tuple[object, ...], tuple[int, int]] = {}
    for row in rated:
        if row["reason"] is None and row["type"] != "clock":
            time_us = round(row["time"].timestamp() * 1_000_000)
            end_us = PipelineCycle(row["cycle"], row["time_zone"], row["anchor_day"]).containing(time_us).end_us
            key = (row["customer"], end_us, row["type"], row["plan"])
            quantity, count = expected.get(key, (0, 0))
            expected[key] = (quantity + row["quantity"], count + 1)
    assert accounts == expected


TIERS = st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**9), st.integers(1, 10**4)), max_size=3).map(
    lambda parts: Tiers(
        tuple(
            Tier(above, micros, per)
            for above, micros, per in sorted({0: (0, 7, 3), **{part[0]: part for part in parts}}.values())
        )
    )
)


@given(TIERS, st.integers(0, 10**12), st.sampled_from(["EUR", "JPY", "KWD"]), st.sampled_from(pipeline_money.ROUNDINGS))
def test_amounts_are_the_same(
    sql: duckdb.DuckDBPyConnection, tiers: Tiers, quantity: int, currency: str, rule: pipeline_money.Rounding
) -> None:
    edges = [tier.above for tier in tiers.tiers]
    named = [
        {"above": tier.above, "below": below, "micros": tier.micros, "per": tier.per}
        for tier, below in zip(tiers.tiers, [*edges[1:], None], strict=True)
    ]
    query = f"with p as (select price(?::hugeint, ?::{TIERS_TYPE}) as a) select a, rounded(a, ?::bigint, ?) from p"
    found = sql.execute(query, [quantity, named, MINOR_MICROS[currency], rule]).fetchall()[0]
    exact = tiers.value(quantity)
    assert found == (exact, pipeline_money.round_micros(exact, currency, rule))
