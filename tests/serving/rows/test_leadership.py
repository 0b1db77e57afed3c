"""What readers are told of who leads."""

from __future__ import annotations

from stateside.core.clock import ManualClock
from stateside.core.layout import Layout
from stateside.leadership import Candidate
from stateside.serving.rows.view_readers import ViewReaders


def test_readers_are_told_who_leads_and_who_stands_by_and_how_long_ago_each_was_heard(layout: Layout) -> None:
    clock = ManualClock(5_000_000)
    views = ViewReaders(layout, clock)
    assert views.leadership() is None
    leader = Candidate(layout.root, "a", lease_s=10, clock=clock).step()
    assert leader is not None
    assert Candidate(layout.root, "b", lease_s=10, clock=clock).step() is None
    clock.advance(700_000)
    told = views.leadership()
    assert told is not None
    assert (told["epoch"], told["leader"]["identity"], told["leader"]["heard_ms"]) == (1, "a", 700)
    assert told["lease_ms"] == 10_000
    assert [(each["identity"], each["heard_ms"]) for each in told["standbys"]] == [("b", 700)]
    leader.release()
    assert (views.leadership() or {})["leader"] is None


def test_a_standby_that_was_killed_is_shown_for_an_hour_and_then_no_more(layout: Layout) -> None:
    clock = ManualClock(5_000_000)
    assert Candidate(layout.root, "a", lease_s=10, clock=clock).step() is not None
    assert Candidate(layout.root, "b", lease_s=10, clock=clock).step() is None
    for minutes, shown in ((59, ["b"]), (1, [])):
        clock.advance(minutes * 60_000_000)
        told = ViewReaders(layout, clock).leadership()
        assert told is not None and [each["identity"] for each in told["standbys"]] == shown
