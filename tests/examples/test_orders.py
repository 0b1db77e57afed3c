"""The order saga against plain Python: every order ends in one final state, every event is emitted once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Literal

import pytest
from pyspark.sql import SparkSession

import stateside
from examples.orders import LIMIT_MICROS, app
from stateside.core.errors import PipelineFailed
from stateside.core.layout import Layout
from stateside.journal import Event, FileLog
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.sink import SinkFactory
from stateside.testing import CRASH_TYPE, CrashingSink, CrashingSource, append, crash_marker, rows

pytestmark = pytest.mark.spark


def run_until_quiet(app: stateside.App, layout: Layout, session: SparkSession) -> None:
    """Run until no query emits anything any more."""
    session.dataSource.register(CrashingSource)
    journal = FileLog(layout.journal)
    settings = RunSettings(events_per_batch_max=40, restarts_max=0, hold_s_max=0)
    with Runner(app, layout, settings, session=session) as runner:
        before = None
        while before != journal.end():
            before = journal.end()
            runner.run_to_end()


def placed(count: int, first: int = 0) -> list[Event]:
    amounts = random.Random(first)
    return [
        Event(f"p{n}", f"o-{n:03}", "order-placed", n, {"amount_micros": amounts.randrange(2 * LIMIT_MICROS)})
        for n in range(first, first + count)
    ]


def expected(orders: list[Event]) -> tuple[list[dict[str, object]], Counter[tuple[str, str, int, int]]]:
    """What plain Python makes of the orders: the view's rows, and every event of the saga."""
    shown, saga = [], Counter[tuple[str, str, int, int]]()
    for order in orders:
        paid = order.payload["amount_micros"] <= LIMIT_MICROS
        last = ("payment-confirmed", "order-confirmed") if paid else ("payment-refused", "stock-released")
        for type_ in ("order-placed", "payment-requested", *last):
            saga[order.entity, type_, order.time_us, order.payload["amount_micros"]] += 1
        state = "4 confirmed" if paid else "4 cancelled"
        shown.append({"order": order.entity, "state": state, "steps": 4, **order.payload})
    return shown, saga


def journalled(layout: Layout) -> Counter[tuple[str, str, int, int]]:
    events = [event for event in FileLog(layout.journal).events() if event.type != CRASH_TYPE]
    return Counter((event.entity, event.type, event.time_us, event.payload["amount_micros"]) for event in events)


def crashing(app: stateside.App, reaction: str, when: Literal["before", "after"]) -> stateside.App:
    """The same application, with a crash just before or after this reaction has emitted its first events."""
    copy = stateside.App(app.name, fields=app.fields)
    copy.views = dict(app.views)
    sink = app.views[reaction].sink
    assert sink is not None
    copy.views[reaction] = replace(app.views[reaction], sink=_crashing(sink, when))
    return copy


def _crashing(sink: SinkFactory, when: Literal["before", "after"]) -> SinkFactory:
    return lambda context: CrashingSink(sink(context), when)


def test_every_order_ends_in_one_final_state_and_every_event_is_emitted_once_whatever_crashes(
    spark: SparkSession, layout: Layout
) -> None:
    orders = placed(20)
    append(layout, [*orders[:10], crash_marker(), *orders[10:]])
    with pytest.raises(PipelineFailed, match="crashes here, at the marker"):
        run_until_quiet(app, layout, spark)
    for reaction in ("shop", "bank", "settle"):
        orders += placed(3, first=len(orders))
        append(layout, orders[-3:])
        with pytest.raises(PipelineFailed, match="crashes here, after the sink has stored the batch"):
            run_until_quiet(crashing(app, reaction, "after"), layout, spark)
    run_until_quiet(app, layout, spark)

    shown, saga = expected(orders)
    assert journalled(layout) == saga
    assert rows(layout, "orders") == shown
    assert {row["state"] for row in shown} == {"4 confirmed", "4 cancelled"}
    ids = [event.id for event in FileLog(layout.journal).events()]
    assert len(set(ids)) == len(ids)
