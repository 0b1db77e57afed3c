"""The live demo's parts, without a system: its desk, its scoreboard, its actions and its story."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from stateside.billing.generator import EVEN_MICROS
from stateside.core.errors import RequestInvalid, ViewUnknown
from stateside.core.layout import Layout
from stateside.serving import Extension
from stateside.testbed.live import Breaker, LiveReport, LiveSettings, Score, Story, _score, finished_bills
from stateside.testbed.live_desk import ASKED_MAX, LiveDesk, routes, with_live_demo
from stateside.testbed.system import System, SystemShape

ACTIONS = {"actions": [{"name": "driver"}, {"name": "store"}]}


@pytest.fixture
def desk(layout: Layout) -> LiveDesk:
    layout.root.mkdir()
    return LiveDesk.of(layout)


def test_actions_are_taken_once_in_the_order_in_which_they_were_asked_for(desk: LiveDesk) -> None:
    desk.show(ACTIONS)
    for name in ("store", "driver", "store"):
        desk.ask(name)
    assert list(desk.taken()) == ["store", "driver", "store"]
    assert list(desk.taken()) == []


def test_an_unknown_action_too_many_and_a_folder_without_a_demo_are_refused(desk: LiveDesk) -> None:
    with pytest.raises(ViewUnknown, match="No live demo"):
        desk.ask("driver")
    desk.show(ACTIONS)
    with pytest.raises(RequestInvalid, match="There is no action 'nothing'"):
        desk.ask("nothing")
    for _ in range(ASKED_MAX):
        desk.ask("driver")
    with pytest.raises(RequestInvalid, match="Too many"):
        desk.ask("driver")


def test_only_operators_reach_its_routes_which_only_its_own_server_has(layout: Layout) -> None:
    assert {(each.method, each.pattern, each.reach) for each in routes(layout)} == {
        ("GET", "/v1/demo", "operator"),
        ("POST", "/v1/demo/actions", "operator"),
    }
    billing = Extension(("a:routes",), ("a:tables",), ("a",))
    assert with_live_demo(billing).pages == ("stateside.testbed.pages", "a")


def documents(*rows: tuple[str, int, int]) -> pa.Table:
    customers, ends, amounts = zip(*rows, strict=True)
    periods = [str(end) for end in ends]
    found = {"customer": customers, "period_end": pa.array(ends, pa.timestamp("us", "UTC")), "amount_micros": amounts}
    return pa.table(found | {"period": periods})


def test_a_bill_is_finished_with_its_corrections_when_the_next_period_has_closed() -> None:
    half = EVEN_MICROS // 2
    found = documents(("c0", 1, half), ("c0", 1, EVEN_MICROS - half), ("c0", 2, half), ("c1", 1, half))
    assert finished_bills(found) == [EVEN_MICROS], "of c0's second and c1's first period a late event may still come"


def test_the_score_is_the_auditors_verdict_and_the_number_of_uneven_bills() -> None:
    balance = {"events_lost": 0, "events_doubled": 0, "invoices_missing": 0, "invoices_doubled": 0}
    audited = {"balance": balance, "counts": {"events": 1_234}, "verdicts": [{"sentences": []}]}
    even = _score(audited, documents(("c0", 1, EVEN_MICROS), ("c0", 2, 1)))
    assert even.ok and even.text() == "1,234 events / 0 lost / 0 doubled / 0 uneven bills of 1"
    off = _score(audited, documents(("c0", 1, EVEN_MICROS - 1), ("c0", 2, 1)))
    assert not off.ok and off.text().endswith("IT DOES NOT ADD UP")
    doubled = _score(audited | {"balance": balance | {"invoices_doubled": 1}}, documents(("c0", 1, 1)))
    assert not doubled.ok and not LiveReport(1.0, doubled, 10, 0, ()).ok
    assert LiveReport(1.0, Score(), 10, 0, ()).ok and not LiveReport(1.0, Score(), 10, 1, ()).ok


class Part:
    """A part that notes what is done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda: self.done.append(name)


def breaker_of(shape: SystemShape) -> tuple[Breaker, Part, list[str]]:
    part, told = Part(), list[str]()
    parts = dict.fromkeys(shape.servers, part)
    system = SimpleNamespace(shape=shape, driver=lambda: part, parts=parts)
    return Breaker(cast(System, system), told.append), part, told


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        (LiveSettings(servers=1), "dip"),
        (LiveSettings(), "drip"),
        (LiveSettings(journal="kafka", cluster=True), "dwmrbip"),
    ],
)
def test_there_is_an_action_for_each_part_that_the_system_has(settings: LiveSettings, keys: str) -> None:
    breaker, *_ = breaker_of(settings.shape())
    assert [each.key for each in breaker.actions.values()] == list(keys)
    assert [breaker.by_key(key) for key in "d?"] == ["driver", None]


def test_spark_is_paused_and_woken_up_by_the_same_action_and_killed_by_another() -> None:
    breaker, part, told = breaker_of(LiveSettings().shape())
    for name in ("pause", "nothing", "pause", "driver", "driver"):
        breaker.act(name)
    assert part.done == ["pause", "resume", "kill", "kill"]
    assert told == ["Pause Spark", "Wake Spark up", "Kill Spark's driver", "Kill Spark's driver"]
    breaker.act("pause")
    assert breaker.actions["pause"].as_dict()["label"] == "Wake Spark up"
    breaker.mend_all()
    assert part.done[-1] == "resume"


def test_the_story_tells_once_that_answers_are_old_and_once_that_they_are_fresh_again() -> None:
    told: list[str] = []
    story = Story(told.append)
    for age_ms in (None, 100, 6_000, 7_000, 100, 100):
        story.look(age_ms)
    assert [line.split("  ", 1)[1][:24] for line in told] == ["answers are getting old:", "answers are fresh again,"]
