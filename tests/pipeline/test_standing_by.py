"""Runs that lead or stand by, up to the moment at which Spark would be started."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import stateside
from stateside.core.errors import IdentityTaken, PipelineRunning, SettingInvalid, ViewInvalid
from stateside.core.layout import Layout
from stateside.leadership import Candidate, Leadership, standing
from stateside.pipeline import foreground
from stateside.pipeline import foreground as foreground_module
from stateside.pipeline.foreground import LinesForPeople, Tell, needs_lease, run_application
from stateside.pipeline.settings import RunSettings
from tests.disks import mounted
from tests.waiting import WAIT_S_MAX, wait_until

LEASE_S = 4.0  # so long must a busy machine not stand still: the leader has to live
STANDBY = RunSettings(standby=True, standby_scope="machine", lease_s=LEASE_S, identity="b")


@pytest.fixture
def too_late() -> Callable[[], bool]:
    """Tells to stop when a test has waited for too long: nothing waits without end."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    return lambda: time.monotonic() > deadline_s


def leader(layout: Layout) -> Leadership:
    leadership = Candidate(layout.root, "a", lease_s=LEASE_S).wait(lambda: False)
    assert leadership is not None and leadership.claim.epoch == 1
    return leadership


def lead(layout: Layout, settings: RunSettings, told_to_stop: Callable[[], bool], tell: Tell) -> Leadership | None:
    """As a run does, which then has Spark to start, and ends."""
    with foreground_module.standing_by(layout, settings, told_to_stop) as candidate:
        return None if candidate is None else foreground_module.lead(candidate, layout, settings, told_to_stop, tell)


def test_a_folder_where_nobody_ever_led_needs_no_lease_and_one_that_was_led_does(layout: Layout) -> None:
    assert not needs_lease(layout, RunSettings())
    assert needs_lease(layout, RunSettings(standby=True)) and needs_lease(layout, RunSettings(take_over=True))
    leader(layout).release()
    assert needs_lease(layout, RunSettings())


def test_a_standby_says_who_leads_and_leads_when_that_one_has_released(
    layout: Layout, too_late: Callable[[], bool]
) -> None:
    before = leader(layout)
    told: list[str] = []

    def tell(what: str) -> None:
        told.append(what)
        before.release()

    leadership = lead(layout, STANDBY, too_late, tell)
    assert leadership is not None
    leadership.release()
    assert told[0].startswith("b stands by: a leads, or led last (process ")
    assert told[1] == "b leads from epoch 2 on"


def test_who_takes_over_asks_for_it_and_waits_until_the_leader_has_stopped_however_long_that_takes(
    layout: Layout, too_late: Callable[[], bool]
) -> None:
    before = leader(layout)
    told: list[str] = []

    def hand_over() -> None:
        wait_until(lambda: before.asked is not None)
        before.release()

    threading.Thread(target=hand_over, daemon=True).start()
    taking_over = replace(STANDBY, standby=False, take_over=True, lease_s_max=0.1)
    leadership = lead(layout, taking_over, too_late, told.append)
    assert leadership is not None and before.asked is not None and before.asked.identity == "b"
    leadership.release()
    assert told[0].startswith("b asks for the leadership: a leads")


def test_a_standby_that_is_told_to_stop_leaves_without_a_trace(layout: Layout, too_late: Callable[[], bool]) -> None:
    before = leader(layout)

    def standbys() -> list[str]:
        return [each["identity"] for each in (standing(layout.root, 0) or {})["standbys"]]

    assert lead(layout, STANDBY, lambda: standbys() == ["b"] or too_late(), lambda what: None) is None
    assert (standbys(), too_late()) == ([], False)
    before.release()


def test_a_run_that_does_not_stand_by_does_not_wait_for_ever_for_a_leader(
    layout: Layout, too_late: Callable[[], bool]
) -> None:
    before = leader(layout)
    with pytest.raises(PipelineRunning, match=r"After 1 s this folder is still led by a \(process .*--standby"):
        lead(layout, RunSettings(lease_s=LEASE_S, lease_s_max=1.0), too_late, lambda what: None)
    before.release()


def test_a_second_process_of_the_same_identity_is_refused_before_it_starts_spark(
    layout: Layout, too_late: Callable[[], bool]
) -> None:
    before = leader(layout)
    with pytest.raises(IdentityTaken, match="'a'"):
        lead(layout, replace(STANDBY, identity="a", lease_s=8 * LEASE_S), too_late, lambda what: None)
    before.check()
    before.release()


def test_who_is_still_starting_spark_has_its_name_and_is_no_standby_yet(
    layout: Layout, too_late: Callable[[], bool]
) -> None:
    before = leader(layout)
    with foreground_module.standing_by(layout, STANDBY, too_late) as candidate:
        assert candidate is not None
        assert (layout.root / "lease" / "members" / "b.json").exists()
        assert (standing(layout.root, 0) or {})["standbys"] == []
        candidate.step()
        assert [each["identity"] for each in (standing(layout.root, 0) or {})["standbys"]] == ["b"]
    assert not (layout.root / "lease" / "members" / "b.json").exists()
    before.release()


def test_a_run_keeps_its_name_while_it_starts_spark(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    class StartedError(Exception):
        """Spark is up: the test needs no more."""

    @contextmanager
    def warmed_up(*_: object) -> Iterator[None]:
        member = layout.root / "lease" / "members" / "b.json"
        before = member.read_bytes()
        wait_until(lambda: member.read_bytes() != before)
        raise StartedError
        yield

    monkeypatch.setattr(foreground, "warmed_up", warmed_up)
    monkeypatch.setattr(foreground, "check_app", lambda app: None)
    with pytest.raises(StartedError):
        run_application(stateside.App("shop"), layout.root, STANDBY, LinesForPeople(None))  # type: ignore[arg-type]


def test_a_folder_that_other_machines_do_not_see_is_refused(tmp_path: Path, too_late: Callable[[], bool]) -> None:
    with mounted(tmp_path / "disk") as disk, pytest.raises(SettingInvalid, match="on a local disk"):
        lead(Layout(disk), replace(STANDBY, standby_scope="shared"), too_late, lambda what: None)


def test_an_application_that_cannot_be_run_is_refused_now_and_not_when_the_leader_has_ended(layout: Layout) -> None:
    with pytest.raises(ViewInvalid, match="has no view"):
        run_application(stateside.App("empty"), layout.root, STANDBY, LinesForPeople(None))  # type: ignore[arg-type]
    assert not (layout.root / "lease").exists()
