"""Three views in three APIs over one journal, each against plain Python."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from pyspark.sql import SparkSession

from examples.three_apis import app
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.testing import append, rows, run_to

pytestmark = pytest.mark.spark


def test_all_three_views_agree_with_plain_python(spark: SparkSession, layout: Layout) -> None:
    chance = random.Random(4)
    orders = [(chance.choice("abc"), chance.choice(("de", "fr")), chance.randrange(1, 100)) for _ in range(60)]
    append(
        layout,
        [Event(f"o{n}", c, "order", 0, {"country": k, "amount_micros": a}) for n, (c, k, a) in enumerate(orders)],
    )
    run_to(app, layout, spark, events_per_batch=25)

    spent, bought = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    streaks: dict[str, tuple[int, int, int]] = {}
    for customer, country, amount in orders:
        spent[customer].append(amount)
        bought[country].append(amount)
        length, last, longest = streaks.get(customer, (0, 0, 0))
        length = length + 1 if amount > last else 1
        streaks[customer] = (length, amount, max(longest, length))

    assert rows(layout, "spending") == [
        {"customer": c, "total_micros": sum(a), "orders": len(a)} for c, a in sorted(spent.items())
    ]
    assert rows(layout, "sales") == [
        {"country": k, "total_micros": sum(a), "largest_micros": max(a)} for k, a in sorted(bought.items())
    ]
    assert rows(layout, "streaks") == [
        {"customer": c, "length": n, "last_micros": last, "longest": most}
        for c, (n, last, most) in sorted(streaks.items())
    ]
