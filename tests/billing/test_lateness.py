"""The allowed lateness of bills: 3 days, or as the journal's first event says, to the pipeline and the auditor."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from stateside.billing.audit.fold import fold
from stateside.billing.audit.ledger import Ledger
from stateside.billing.book.book import BookKeeper
from stateside.billing.model import (
    DAY_US,
    GRACE_US,
    HOUR_US,
    LATENESS,
    LATENESS_NOTE,
    LATENESS_US_MAX,
    clock_tick,
    lateness,
    lateness_file,
    lateness_in_force,
    usage,
)
from stateside.billing.operations.publication import set_lateness
from stateside.billing.pipeline import app
from stateside.billing.rating.rating import events_table, rate
from stateside.cli.group import main
from stateside.core.errors import EventRefused, SettingInvalid
from stateside.core.layout import Layout
from stateside.journal import Event, open_journal
from stateside.testing import run_to
from tests.billing.audit.test_spark import audited
from tests.billing.staged import Stage, at_us
from tests.billing.test_pipeline import JANUARY_END_US, SIMPLE

START_US = at_us("2025-12-01T00:00:00+00:00")
AGAIN = Event("b", LATENESS, LATENESS, START_US, {"quantity": 1})


def test_a_folder_without_the_event_allows_three_days(layout: Layout) -> None:
    """As all folders of version 0.1.0."""
    assert lateness_in_force(layout) == GRACE_US == 3 * DAY_US
    Stage(layout).publish([SIMPLE], {"emma": "simple"})
    assert lateness_in_force(layout) == GRACE_US


def test_the_lateness_of_a_new_folder_can_be_set_once(layout: Layout) -> None:
    assert str(set_lateness(layout, 5 * DAY_US)) == "0:1"
    assert lateness_in_force(layout) == 5 * DAY_US
    assert set_lateness(layout, 5 * DAY_US) is None
    with pytest.raises(SettingInvalid, match=r"is 5 days here, and cannot be changed any more.*Begin in a new folder"):
        set_lateness(layout, 4 * DAY_US)


def test_in_a_folder_with_events_or_a_view_it_cannot_be_set_any_more(layout: Layout, tmp_path: Path) -> None:
    Stage(layout).publish([SIMPLE], {"emma": "simple"})
    with pytest.raises(SettingInvalid, match="is 3 days here, and cannot be changed"):
        set_lateness(layout, DAY_US)
    started = Layout(tmp_path / "started")
    started.view("bill").checkpoint.mkdir(parents=True)
    with pytest.raises(SettingInvalid, match="is 3 days here, and cannot be changed"):
        set_lateness(started, DAY_US)


def test_an_impossible_lateness_is_refused(layout: Layout) -> None:
    for allowed_us in (-1, LATENESS_US_MAX + 1):
        with pytest.raises(EventRefused):
            set_lateness(layout, allowed_us)


def test_a_journal_that_says_other_than_the_view_began_with_is_told(layout: Layout) -> None:
    """The event was appended by hand after the view had started on an empty journal."""
    LATENESS_NOTE.write(lateness_file(layout), GRACE_US)
    Stage(layout).append(START_US, [lateness(DAY_US, START_US)])
    with pytest.raises(SettingInvalid, match="an allowed lateness of 1 day, and the bills here were begun with 3"):
        lateness_in_force(layout)


def test_the_command_sets_and_shows_it(tmp_path: Path) -> None:
    folder = str(tmp_path / "new")
    assert CliRunner().invoke(main, ["billing", "lateness", "--dir", folder]).output == "3 days\n"
    assert CliRunner().invoke(main, ["billing", "lateness", "1.5", "--dir", folder]).output == "1.5 days\n"
    again = CliRunner().invoke(main, ["billing", "lateness", "2", "--dir", folder])
    assert again.exit_code == 1
    assert "The allowed lateness is 1.5 days here, and cannot be changed any more" in again.output


@pytest.mark.parametrize(
    ("events", "bad", "in_force_us"),
    [
        ([lateness(DAY_US, START_US)], {}, DAY_US),
        ([lateness(0, START_US)], {}, 0),
        (
            [lateness(DAY_US, START_US), AGAIN],
            {1: "unknown-type"},
            DAY_US,
        ),
        ([clock_tick(START_US, "t"), lateness(DAY_US, START_US)], {1: "unknown-type"}, GRACE_US),
        ([Event("a", LATENESS, LATENESS, START_US, {})], {0: "unknown-type"}, GRACE_US),
        ([Event("a", LATENESS, LATENESS, START_US, {"quantity": "5"})], {0: "unknown-type"}, GRACE_US),
        ([Event("a", LATENESS, LATENESS, START_US, {"quantity": -5})], {0: "unknown-type"}, GRACE_US),
        ([Event("a", LATENESS, LATENESS, START_US, {"quantity": LATENESS_US_MAX + 1})], {0: "unknown-type"}, GRACE_US),
    ],
)
def test_pipeline_and_auditor_judge_the_event_alike(
    layout: Layout, tmp_path: Path, events: list[Event], bad: dict[int, str], in_force_us: int
) -> None:
    Stage(layout).append(START_US, events)
    journal = open_journal(layout.journal).log()
    end = journal.end().one()
    rated = rate(events_table(journal, 0, end), BookKeeper(journal, None).at(end)).to_pylist()
    assert {row["offset"]: row["reason"] for row in rated if row["reason"] not in (None, "reference")} == bad
    assert lateness_in_force(layout) == in_force_us
    with Ledger(tmp_path / "audit") as ledger:
        fold(ledger, journal, end)
        assert dict(ledger.rows('select "offset", reason from bad')) == bad
        said = ledger.one("select lateness_us from fold")
        assert (GRACE_US if said is None else said) == in_force_us


@pytest.mark.spark
def test_a_period_closes_and_events_are_late_by_the_lateness_of_the_folder(spark: SparkSession, layout: Layout) -> None:
    """With one day: an event that comes two days after the period's end makes a note, and the auditor agrees."""
    stage = Stage(layout)
    stage.append(START_US, [lateness(DAY_US, START_US)])
    stage.publish([SIMPLE], {"emma": "simple"})
    stage.append(JANUARY_END_US - HOUR_US, [usage("m1", "emma", "message", JANUARY_END_US - 2 * HOUR_US, 3)])
    closed_us = JANUARY_END_US + DAY_US
    stage.append(closed_us, [clock_tick(closed_us, "tick")])
    run_to(app, layout, spark)
    assert [(each["kind"], each["period"]) for each in stage.documents()] == [("invoice", "2026-01")]
    assert LATENESS_NOTE.read(lateness_file(layout)) == DAY_US
    stage.append(closed_us + DAY_US, [usage("m2", "emma", "message", JANUARY_END_US - 3 * HOUR_US, 2)])
    run_to(app, layout, spark)
    assert [each["kind"] for each in stage.documents()] == ["invoice", "debit-note"]
    assert stage.dead_letters() == []
    assert audited(layout).differences() == []
    with Ledger(layout.audit) as ledger:  # as by an auditor that reads another lateness
        ledger.sql.execute("update fold set lateness_us = ?", [GRACE_US])
    assert audited(layout).differences() != []
