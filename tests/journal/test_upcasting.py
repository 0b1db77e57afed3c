"""Old events as the newest schema of their type has them."""

from pathlib import Path
from typing import Any

import pytest

from stateside.core.errors import SettingInvalid
from stateside.journal import Event, FileLog, JournalWriter, MemoryJournal, Upcasters


def call(version: int, payload: dict[str, Any], type_: str = "call") -> Event:
    return Event(f"e{version}", "emma", type_, 0, payload, version=version)


@pytest.fixture
def upcasters() -> Upcasters:
    """Minutes became seconds, and then a duration with its unit. Registered the wrong way round."""
    steps = Upcasters()
    steps.register("call", 2, lambda payload: {"duration": payload["seconds"], "unit": "s"})
    steps.register("call", 1, lambda payload: {"seconds": payload["minutes"] * 60})
    return steps


EVENTS = [
    call(1, {"minutes": 2}),
    call(2, {"seconds": 61}),
    call(3, {"duration": 5, "unit": "s"}),
    call(4, {"of": "tomorrow"}),
    call(1, {"minutes": 2}, "fax"),
]


def test_events_come_through_every_step_from_their_version_on(upcasters: Upcasters, tmp_path: Path) -> None:
    memory = MemoryJournal(upcasters=upcasters)
    for writer in (JournalWriter(tmp_path), memory.writer()):
        with writer:
            writer.append(EVENTS, compare_ids=False)
    for journal in (FileLog(tmp_path, upcasters=upcasters), memory):
        found = list(journal.events())
        assert [(event.version, event.payload) for event in found] == [
            (3, {"duration": 120, "unit": "s"}),
            (3, {"duration": 61, "unit": "s"}),
            (3, {"duration": 5, "unit": "s"}),
            (4, {"of": "tomorrow"}),
            (1, {"minutes": 2}),
        ]
        assert [event.sequence for event in found] == [1, 2, 3, 4, 5]
    assert list(FileLog(tmp_path).events()) == EVENTS


def test_a_missing_step_is_told_with_the_type_and_the_versions(upcasters: Upcasters) -> None:
    upcasters.register("call", 4, dict)
    with pytest.raises(
        SettingInvalid, match=r"no upcaster of 'call' from version 3 to 4.*'e1' of version 1.*version 5"
    ):
        upcasters.upcast(EVENTS[0])
    assert upcasters.upcast(EVENTS[3]).version == 5


def test_two_steps_from_one_version_are_refused_when_they_are_registered(upcasters: Upcasters) -> None:
    with pytest.raises(SettingInvalid, match="two upcasters of 'call' from version 1 to 2"):
        upcasters.register("call", 1, dict)


@pytest.mark.parametrize("version", [0, -1, 32_767])
def test_a_step_from_a_version_that_no_event_has_is_refused(upcasters: Upcasters, version: int) -> None:
    with pytest.raises(SettingInvalid, match=f"begins at version {version}"):
        upcasters.register("call", version, dict)
