"""Pulses: who wants to know is told all the time how old what it has is by now, and how the job is."""

from __future__ import annotations

import time

import pytest

from stateside.core.positions import Position
from stateside.serving.changes import feed
from stateside.serving.changes.watch import Watch
from stateside.serving.rows.floor import Floor
from stateside.views.heartbeat import Heartbeat
from tests.serving.changes.room import Room, in_a_room
from tests.serving.changes.watched import VIEW, Mover, Told, events


def beat(room: Room, state: str = "idle", seconds_ago: float = 0.0) -> None:
    time_us = time.time_ns() // 1_000 - int(seconds_ago * 1_000_000)
    heartbeat = Heartbeat(time_us, Position.of({"0": 0}), state, 0)  # type: ignore[arg-type]
    heartbeat.save(room.layout.view(VIEW).heartbeat)


def pulsed(room: Room) -> Watch:
    plain = room.watch()
    return Watch(plain._feed, plain.question, pulsed=True)


def test_a_pulse_has_the_age_of_now_and_the_job_s_state_and_no_id(
    mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(room: Room) -> None:
        beat(room)
        watch = pulsed(room)
        parts = watch.parts(await watch.begin(None, Floor()))
        told: list[Told] = []
        async for each in events(parts):
            told.append(each)
            if len(told) == 3:
                beat(room, seconds_ago=60)
            if len(told) > 3 and each.data["job"]["state"] == "down":
                break
        assert [each.kind for each in told] == ["snapshot"] + ["pulse"] * (len(told) - 1)
        assert all(each.id is None for each in told[1:])
        assert told[1].data["job"]["state"] == "idle"
        ages = [each.data["stamp"]["age_ms"] for each in told[1:]]
        assert ages == sorted(ages), "nothing moves this replica: it gets older"
        assert ages[0] < ages[-1]
        await parts.aclose()
        await room.settle()

    monkeypatch.setattr(feed, "_ALIVE_LOOK_S", 0.0)
    in_a_room(mover, run)


def test_who_did_not_ask_for_pulses_gets_none(mover: Mover, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(room: Room) -> None:
        beat(room)
        watch = room.watch()
        parts = watch.parts(await watch.begin(None, Floor()))
        told: list[Told] = []
        async for each in events(parts):
            told.append(each)
            if each.kind == "changes":
                break
            room.apply({(0, "call"): 7})
        assert [each.kind for each in told] == ["snapshot", "changes"]
        await parts.aclose()
        await room.settle()

    monkeypatch.setattr(feed, "_ALIVE_LOOK_S", 0.0)
    in_a_room(mover, run)
