"""The files of plans and prices beside the checkpoint: they only ever grow."""

from __future__ import annotations

import pytest

from stateside.billing.plans.file import extend_plans, load_plans, plan_file
from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.errors import CheckpointInvalid
from stateside.core.layout import Layout
from stateside.views.functions import FunctionTable
from tests.billing.billed import PRICES, version


def test_versions_are_added_with_their_prices_and_stay(layout: Layout) -> None:
    places = layout.view("bill")
    assert load_plans(places) == {}
    first, second = version(), version(number=2, currency="USD")
    for plan in (first, second):
        extend_plans(places, {plan.id: plan})
    assert load_plans(places) == {"basic@1": first, "basic@2": second}
    table = FunctionTable.load(places.functions)
    assert {key[0] for key in table.entries} == {"basic@1", "basic@2"}
    assert table.entries["basic@2", "call"] == second.prices["call"]


def test_nothing_new_writes_nothing(layout: Layout) -> None:
    places = layout.view("bill")
    extend_plans(places, {"basic@1": version()})
    written = [path.stat().st_mtime_ns for path in (plan_file(places), places.functions)]
    extend_plans(places, {"basic@1": version()})
    assert [path.stat().st_mtime_ns for path in (plan_file(places), places.functions)] == written


def test_a_version_with_other_prices_than_before_is_refused(layout: Layout) -> None:
    places = layout.view("bill")
    extend_plans(places, {"basic@1": version()})
    with pytest.raises(CheckpointInvalid, match="basic@1/message"):
        extend_plans(places, {"basic@1": version(prices={**PRICES, "message": Tiers((Tier(0, 1, 1),))})})


@pytest.mark.parametrize("content", ["{", "[]", '{"basic@1": {}}', '{"basic@1": 7}'])
def test_a_damaged_file_is_told(layout: Layout, content: str) -> None:
    places = layout.view("bill")
    plan_file(places).parent.mkdir(parents=True)
    plan_file(places).write_text(content)
    with pytest.raises(CheckpointInvalid, match="plans of the view cannot be read"):
        load_plans(places)
