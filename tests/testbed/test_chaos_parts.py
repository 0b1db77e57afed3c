"""The parts of a scenario as processes, without Spark: a producer that is killed, signals to whole families, a disk."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from stateside.billing.invoicing.documents import documents_table
from stateside.billing.model import VIEW
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.processes import free_port
from stateside.journal import FileLog
from stateside.testbed import disk
from stateside.testbed.chaos import ChaosSettings, ScenarioRun
from stateside.testbed.component import Interrupts, Supervised, members
from stateside.testbed.faults import Broken, Fault, _move_away, stored_uncommitted
from stateside.testbed.feeder import NUDGE
from stateside.testbed.producer import BEFORE, Desk, ProducerLoad
from stateside.testbed.scenarios import scenario_of
from stateside.testbed.system import System, SystemShape
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

WRITER = "stateside.testbed.producer"


@pytest.fixture
def parts() -> Iterator[list[Supervised]]:
    started: list[Supervised] = []
    yield started
    for part in started:
        part.stop()


def a_load(layout: Layout, seconds: float) -> ProducerLoad:
    nobody = f"http://127.0.0.1:{free_port()}"
    folder = str(layout.root)
    return ProducerLoad(folder=folder, urls=(nobody,), seconds=seconds, customers=20, seed=3, late_share=0.0)


def written(layout: Layout) -> list[str]:
    try:
        return [event.id for event in FileLog(layout.journal).events() if not event.id.startswith(NUDGE)]
    except FileNotFoundError:
        return []


def test_a_producer_killed_in_the_middle_goes_on_and_every_event_is_in_the_journal_once_and_in_order(
    layout: Layout, tmp_path: Path, parts: list[Supervised]
) -> None:
    desk, load = Desk(tmp_path), a_load(layout, seconds=4.0)
    desk.lay(load)
    made = [arrival.event.id for arrival in load.generator().arrivals()]
    part = Supervised("writer", [str(tmp_path)], tmp_path / "log", module=WRITER)
    parts.append(part)
    desk.allow(1.0)

    def reached(share: float) -> bool:
        return len(written(layout)) > share * len(made)

    for share in (0.2, 0.5):
        wait_until(partial(reached, share), part.child.tail)
        part.kill()
        assert not members(part.child.pid)
        part.supervise()
    desk.hurry()
    wait_until(lambda: len(written(layout)) >= len(made), part.child.tail)
    assert written(layout) == made
    assert part.restarts == 2
    desk.note_drained(0)
    wait_until(lambda: part.child.returncode() is not None)
    assert part.child.returncode() == 0


class Suffering:
    """As much of a system as a fault needs, with a real producer and nothing else."""

    def __init__(self, desk: Desk, layout: Layout) -> None:
        self.desk, self.journal = desk, FileLog(layout.journal)

    def let_pass(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, what: str, done: Callable[[], bool], seconds_max: float) -> None:
        wait_until(done, lambda: f"there is not {what}")

    def answers_cover(self, floor: Position) -> bool:
        return True


def test_a_fault_comes_in_the_middle_of_appends_and_they_go_on_while_it_lasts(
    layout: Layout, tmp_path: Path, parts: list[Supervised]
) -> None:
    desk, load = Desk(tmp_path), a_load(layout, seconds=20.0)
    desk.lay(load)
    part = Supervised("writer", [str(tmp_path)], tmp_path / "log", module=WRITER)
    parts.append(part)
    wait_until(lambda: desk.done() >= BEFORE, part.child.tail)  # as a slow start of Spark has it: the producer stands
    ends: list[list[int]] = []

    def inject(system: System) -> Broken:
        ends.append([system.journal.end().events()])
        wait_until(lambda: system.journal.end().events() > ends[-1][0], part.child.tail)
        desk.allow(1.0)  # as the search for a sealing does
        return Broken(lambda: ends[-1].append(system.journal.end().events()))

    fault = Fault("something", "away", inject, away_s=1.0)
    scenario = scenario_of("twice", SystemShape(), fault, fault)
    with Interrupts() as interrupts:
        course = ScenarioRun(scenario, ChaosSettings(), tmp_path, Console(file=io.StringIO()), interrupts)
        system = cast(System, Suffering(desk, layout))
        suffered = [course.suffer(system, fault, left) for left in (2, 1)]
    for (before, after), each in zip(ends, suffered, strict=True):
        assert 0 < each.appended <= after - before
    assert after < len(list(load.generator().arrivals())), "there is something left for the end"


def test_a_producer_waits_for_a_journal_that_is_away_and_stores_nothing_twice(
    layout: Layout, tmp_path: Path, parts: list[Supervised]
) -> None:
    desk, load, away = Desk(tmp_path), a_load(layout, seconds=4.0), tmp_path / "away"
    desk.lay(load)
    desk.allow(1.0)
    made = [arrival.event.id for arrival in load.generator().arrivals()]
    part = Supervised("writer", [str(tmp_path)], tmp_path / "log", module=WRITER)
    parts.append(part)
    wait_until(lambda: len(written(layout)) > 0.3 * len(made), part.child.tail)
    part.pause()  # so that it does not begin a new journal in the moment without one
    layout.journal.rename(away)
    layout.journal.write_text("no folder")
    part.resume()
    wait_until(lambda: "The journal is looked at again" in part.child.tail(), part.child.tail)
    layout.journal.unlink()
    away.rename(layout.journal)
    desk.hurry()
    wait_until(lambda: len(written(layout)) >= len(made), part.child.tail)
    assert written(layout) == made
    assert part.child.returncode() is None, "it was not even started again"


@pytest.fixture
def family(tmp_path: Path, parts: list[Supervised], monkeypatch: pytest.MonkeyPatch) -> Supervised:
    """A part that has started a process of its own, which does not end with it."""
    (tmp_path / "family.py").write_text(
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    part = Supervised("family", [], tmp_path / "log", module="family")
    parts.append(part)
    wait_until(lambda: len(members(part.child.pid)) == 2)
    return part


def test_a_part_that_was_stopped_leaves_nothing_of_what_it_started(
    family: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateside.testbed.component.MEMBERS_S_MAX", 0.1)
    family.pause()
    family.stop()
    wait_until(lambda: not members(family.child.pid))


def test_a_part_is_paused_and_resumed_with_all_that_it_started(family: Supervised) -> None:
    part = family
    part.pause()
    wait_until(lambda: _states(part) == {"T"})
    part.resume()
    wait_until(lambda: _states(part) == {"S"})
    part.kill()
    assert not members(part.child.pid)
    part.kill()  # a second time it does nothing


def _states(part: Supervised) -> set[str]:
    stats = (Path(f"/proc/{pid}/stat").read_text() for pid in members(part.child.pid))
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


@pytest.fixture
def disks() -> None:
    """Skips where a small disk cannot be mounted."""
    if why := disk.refusal():
        pytest.skip(why)


@pytest.mark.usefixtures("disks")
def test_a_small_disk_is_filled_to_its_last_block_and_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateside.testbed.disk.SIZE", "1m")
    with disk.mounted(tmp_path / "disk") as folder:
        (folder / "before").write_text("here")
        ballast = disk.fill(folder)
        assert shutil.disk_usage(folder).free == 0
        with pytest.raises(OSError, match="No space left"):
            (folder / "more").write_bytes(bytes(10_000))
        assert (folder / "before").read_text() == "here"
        ballast.unlink()
        (folder / "more").write_bytes(bytes(10_000))
    assert list((tmp_path / "disk").iterdir()) == []


def test_where_no_disk_can_be_mounted_it_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = disk.refusal()
    assert told is not None
    assert "A small disk, to be filled, cannot be mounted here" in told
    assert "as root" in told


def test_what_was_moved_away_comes_back_as_it_was_whatever_was_put_in_its_place(tmp_path: Path) -> None:
    home = tmp_path / "tables"
    (home / "documents").mkdir(parents=True)
    broken = _move_away(home, tmp_path / "away")
    assert not home.exists()
    assert broken.since_s is None, "it does not heal by itself"
    (home / "another").mkdir(parents=True)
    broken.heal()
    assert [path.name for path in home.iterdir()] == ["documents"]
    assert not (tmp_path / "away").exists()


def test_what_was_moved_away_comes_back_while_somebody_goes_on_to_write_into_its_place(tmp_path: Path) -> None:
    for number in range(5):
        home = tmp_path / f"checkpoint-{number}"
        (home / "offsets").mkdir(parents=True)
        broken = _move_away(home, tmp_path / "away")
        with writing_into(home / "state"):
            wait_until((home / "state" / "0").exists)
            broken.heal()
        assert (home / "offsets").is_dir()
        assert not (tmp_path / "away").exists()


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """A thread that writes one file after the other, into a folder that it makes where there is none."""
    stop = threading.Event()

    def write() -> None:
        for number in itertools.takewhile(lambda _: not stop.is_set(), itertools.count()):
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / str(number)).write_bytes(bytes(2_000))
            time.sleep(0.0005)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_the_worst_moment_is_told_by_the_batch_whose_documents_are_stored_and_not_committed(layout: Layout) -> None:
    checkpoint = layout.view(VIEW).checkpoint
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id": "query"}')
    documents = documents_table(layout)
    documents.create()
    assert not stored_uncommitted(layout), "none are stored"
    opened = documents.opened()
    opened.store(opened.spec.schema.empty_table(), 9, {"query": 9})
    (checkpoint / "offsets" / "10").touch()
    assert stored_uncommitted(layout)
    (checkpoint / "commits" / "9").touch()
    assert not stored_uncommitted(layout), "that the next batch is planned does not matter"
