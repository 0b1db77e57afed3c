"""A changed application is refused before Spark is started, where that can be seen without a plan."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import stateside
from stateside.core.errors import SettingInvalid, ViewChanged, ViewInvalid
from stateside.core.layout import Layout
from stateside.journal import open_journal
from stateside.pipeline import comparison
from stateside.pipeline.foreground import LinesForPeople, _no_empty_folder, check_before_spark, run_application
from stateside.pipeline.settings import RunSettings

FIELDS = "country string, amount_micros long"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A folder in which `spending` has run, with two partitions (`tests/compatibility/shop.py`)."""
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(Path(__file__).parents[1] / "compatibility" / "v0.1.0.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return Layout(folder / "shop")


def app(**changed: Any) -> stateside.App:
    made = stateside.App("shop", fields=FIELDS)
    declared: dict[str, Any] = {"key": ["customer", "country"], "rollups": [["country"]], **changed}
    made.view(**declared)(spending)
    return made


def spending(events: Any) -> Any:
    raise AssertionError("Spark is not needed to refuse this")


def settings(**given: Any) -> RunSettings:
    return RunSettings.of(("as a flag", given))


def test_an_unchanged_application_is_not_refused(shop: Layout) -> None:
    check_before_spark(app(), shop, settings())
    check_before_spark(app(), shop, settings(partitions=2))


def test_another_key_is_refused(shop: Layout) -> None:
    with pytest.raises(ViewInvalid, match=r"its key was \['customer', 'country'\] and is \['customer'\]"):
        check_before_spark(app(key=["customer"], rollups=[]), shop, settings())


def test_another_source_is_refused_unless_the_change_is_accepted(shop: Layout) -> None:
    other = app(source=stateside.sources.journal(types=["order"]))
    with pytest.raises(ViewInvalid, match=r"(?s)before: .*now: .*order.*--accept-changes"):
        check_before_spark(other, shop, settings())
    check_before_spark(other, shop, settings(accept_changes=True))


def test_a_reaction_in_a_view_s_place_is_refused(shop: Layout) -> None:
    other = stateside.App("shop", fields=FIELDS)
    other.reaction(sink=stateside.sinks.journal())(spending)
    with pytest.raises(ViewInvalid, match="it was a view and is a reaction now"):
        check_before_spark(other, shop, settings())


def test_the_table_has_the_reason_the_cost_and_the_command(shop: Layout) -> None:
    other = app(key=["customer"], rollups=[])
    other.target = "shop:app"
    (found,) = [each for each in comparison.compare(other, shop) if each.view == "spending"]
    assert (found.verdict, found.events) == ("needs a backfill", open_journal(shop.journal).end().events())
    assert found.bytes and found.bytes > 1_000
    with pytest.raises(ViewChanged) as refused:
        check_before_spark(other, shop, settings())
    assert comparison.table([found]) in str(refused.value)
    assert f"stateside apply shop:app --dir {shop.root}" in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "obstacle"),
    [
        ({"source": stateside.sources.stream(lambda session: spending(session))}, "cannot be read again"),
        ({"sink": stateside.sinks.journal()}, "would get all rows a second time"),
        ({"sink": stateside.sinks.delta("orders")}, "would get all rows a second time"),
        ({"late": stateside.sinks.delta("orders")}, "would get all rows a second time"),
        (
            {
                "sink": stateside.sinks.journal(),
                "backfill": "skip",
                "source": stateside.sources.files("in", fields="n int"),
            },
            "backfill='skip' is not possible",
        ),
    ],
)
def test_a_view_that_cannot_be_folded_again_must_be_new(shop: Layout, changed: dict[str, Any], obstacle: str) -> None:
    found = comparison.compare(app(key=["customer"], rollups=[], **changed), shop)[0]
    assert found.verdict == "must be new" and obstacle in found.why


@pytest.mark.parametrize(
    "changed",
    [
        {"sink": stateside.sinks.delta("orders", key=["customer"])},
        {"backfill": "deliver"},
        {"backfill": "skip"},
        {"archive": "old"},
    ],
)
def test_a_sink_that_takes_rows_again_is_no_obstacle(shop: Layout, changed: dict[str, Any]) -> None:
    delivered = {"sink": stateside.sinks.journal(), **changed} if "archive" not in changed else changed
    found = comparison.compare(app(key=["customer"], rollups=[], **delivered), shop)[0]
    assert found.verdict == "needs a backfill"


def test_views_of_a_folder_that_never_ran_are_new_and_others_removed(shop: Layout, tmp_path: Path) -> None:
    assert comparison.compare(app(), Layout(tmp_path / "nothing"))[0].verdict == "new"
    verdicts = {each.view: each.verdict for each in comparison.compare(app(name="bought"), shop)}
    assert verdicts == {"bought": "new", "hourly": "removed", "spending": "removed"}


def test_other_partitions_than_the_state_has_are_refused(shop: Layout) -> None:
    with pytest.raises(SettingInvalid, match="'spending' has 2 partitions, and 4 are asked for"):
        check_before_spark(app(), shop, settings(partitions=4))


def test_the_run_itself_refuses_it_before_it_starts_anything(shop: Layout) -> None:
    before = sorted(shop.root.rglob("*"))
    with pytest.raises(SettingInvalid):
        run_application(app(), shop.root, settings(partitions=4), LinesForPeople(sys.stderr))
    assert sorted(shop.root.rglob("*")) == before


def test_a_new_folder_is_removed_again_if_its_application_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ViewInvalid), _no_empty_folder(tmp_path / "new"):
        (tmp_path / "new" / "spark").mkdir(parents=True)
        raise ViewInvalid("as Spark's plan shows")
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    for folder in ("mine", "begun"):
        with pytest.raises(ViewInvalid), _no_empty_folder(tmp_path / folder):
            (tmp_path / folder / "views").mkdir(parents=True)
            raise ViewInvalid("as Spark's plan shows")
        assert (tmp_path / folder).exists()
