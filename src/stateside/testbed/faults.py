"""Faults: injected into a running system, and healed.

`inject` returns the `Broken` state with its healing function. A fault knows nothing of the outcome.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from stateside.billing.invoicing.documents import documents_table
from stateside.billing.model import VIEW
from stateside.core.errors import StatesideError
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.leadership import standing
from stateside.ops.restore import restore
from stateside.serving.clients import Client
from stateside.spark_state.batch_log import Checkpoint
from stateside.testbed.cluster import Cluster
from stateside.testbed.component import Supervised, members
from stateside.testbed.disk import fill
from stateside.testbed.producer import CLOSED
from stateside.testbed.system import LEASE_S, PROBE_S_MAX, START_S_MAX, System
from stateside.testbed.witness import bill_path
from stateside.views.savepoint import living_views, take_all

Happening = Literal["killed", "paused", "away", "full", "restored", "at random"]
Heal = Callable[[], None]

AWAY_S = 8.0  # for faults that need healing
BACK_S_MAX = 30.0  # limit for moving a folder back against intruders
SEALING_S_MAX = 45.0  # limit for the worst moment to come
_SPIN_S = 0.001
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Broken:
    """The healing function of a fault; `since_s` is set if the system recovers without healing, from that time on.

    `began` is the journal's end when the fault took effect, if later than `inject`. `settle` waits for effects due
    after the recovery. `missed` names a deviation from the intended fault.
    """

    heal: Heal
    since_s: float | None = None
    began: Position | None = None
    settle: Callable[[], None] = lambda: None
    missed: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault in a part; `inject` performs it, and returns the healing function to call after `away_s`.

    `repeats`: a batch may have to be repeated. `stops_producer`: no appends meanwhile. `fails_view`: the fault reaches
    the view's query, which may fail and be restarted.
    """

    part: str
    happening: Happening
    inject: Callable[[System], Broken]
    away_s: float = 0.0
    repeats: bool = False
    stops_producer: bool = False
    fails_view: bool = True


def together(*faults: Fault) -> Fault:
    """Several faults at the same time, healed in the same order; `happening` is the first fault's."""

    def inject(system: System) -> Broken:
        broken = [fault.inject(system) for fault in faults]
        alone = [each.since_s for each in broken if each.since_s is not None]
        return Broken(
            lambda: _each(one.heal for one in broken),
            min(alone) if len(alone) == len(broken) else None,
            next((one.began for one in broken if one.began), None),
            lambda: _each(one.settle for one in broken),
            " ".join(one.missed for one in broken if one.missed),
        )

    return Fault(
        " and ".join(fault.part for fault in faults),
        faults[0].happening,
        inject,
        max(fault.away_s for fault in faults),
        repeats=any(fault.repeats for fault in faults),
        stops_producer=any(fault.stops_producer for fault in faults),
        fails_view=any(fault.fails_view for fault in faults),
    )


def _each(steps: Iterable[Callable[[], None]]) -> None:
    for step in steps:
        step()


def by_itself() -> Broken:
    """A fault that needs no healing: the supervisor restarts the ended part."""
    return Broken(lambda: None, time.monotonic())


def kill_driver(system: System) -> Broken:
    """Kill at the worst moment: the documents of a batch are stored, and the batch is not committed."""
    driver = system.driver()
    missed = _pause_within_a_sealing(system, driver)
    driver.kill()
    return replace(by_itself(), began=system.journal.end(), missed=missed)


def pause_driver(system: System) -> Broken:
    """Pause past the lease: a standby leads, and works, when the old leader wakes up."""
    old = system.driver()
    system.wait("a standby", lambda: _standbys(system) > 0, START_S_MAX)
    missed = _pause_within_a_sealing(system, old)
    since_s, began, starts = time.monotonic(), system.journal.end(), old.restarts
    system.let_pass(LEASE_S)
    system.wait("another leader", lambda: system.leader() not in (None, old), START_S_MAX)
    floor = system.journal.end()
    system.wait("a batch of the new leader", lambda: system.answers_cover(floor), START_S_MAX)

    def settle() -> None:
        old.caused += 1
        system.wait("an end of the old leader", lambda: old.restarts > starts, START_S_MAX)
        system.wait("the old leader as a standby", lambda: _standbys(system) > 0, START_S_MAX)

    return Broken(old.resume, since_s, began, settle, missed)


def kill_replica(system: System) -> Broken:
    """Kill the server that follows the checkpoint, with its workers."""
    system.parts["replica-1"].kill()
    return by_itself()


def kill_writer(system: System) -> Broken:
    """Kill the producer between its appends. Healed once the journal has grown."""
    system.parts["writer"].kill()
    end = system.journal.end()
    goes_on = lambda: system.journal.end() != end  # noqa: E731
    return replace(by_itself(), heal=lambda: system.wait("a producer that goes on", goes_on, START_S_MAX))


def kill_broker(system: System) -> Broken:
    """Kill the broker that holds the journal."""
    broker = system.ground.broker
    assert broker is not None, "the shape has one"
    broker.kill()
    return Broken(broker.start)


def kill_worker(system: System) -> Broken:
    """Kill one of Spark's workers, with its executor, as a machine's crash would."""
    return _hold_down(system, "worker-1")


def kill_both_workers(system: System) -> Broken:
    """Kill all workers: nothing can run until one is back."""
    return _hold_down(system, "worker-1", "worker-2")


def kill_master(system: System) -> Broken:
    """Kill the leading master: another one soon leads."""
    return _hold_down(system, _cluster(system).await_leader())


def _hold_down(system: System, *names: str) -> Broken:
    """Kill these parts of the cluster, and keep them from being restarted until healed."""
    cluster = _cluster(system)
    system.held.update(names)
    for name in names:
        cluster.kill(name)

    def heal() -> None:
        for name in names:
            cluster.restart(name)
        system.held.difference_update(names)

    return Broken(heal)


def move_invoice_store(system: System) -> Broken:
    """Move all tables away, like an unmounted disk, once there are invoices; bills keep showing them meanwhile."""
    system.desk.allow(max(CLOSED, system.desk.done()))
    system.wait("an invoice in the bills of every replica", lambda: all(map(_has_invoice, system.urls)), START_S_MAX)
    return move_tables(system)


def move_tables(system: System) -> Broken:
    """Move all tables away at once."""
    return _move_away(system.layout.root / "tables", system.desk.folder / "tables-away")


def move_checkpoint(system: System) -> Broken:
    """Move Spark's checkpoint away.

    Files that Spark writes in its place are deleted, as documented, before the return.
    """
    return _move_away(system.layout.view(VIEW).checkpoint, system.layout.root / "checkpoint-away")


def fill_disk(system: System) -> Broken:
    """Fill the disk of the application's folder: journal, checkpoint, tables, a replica.

    The other replica is elsewhere.
    """
    return Broken(fill(system.layout.root).unlink)


def restore_savepoint(system: System) -> Broken:
    """Go back to a savepoint, taken during the appends, once documents were stored after it; the driver is stopped."""
    layout, documents = system.layout, system.layout.table("documents") / "_delta_log"
    taken = take_all(layout, list(living_views(layout).values()), time.time_ns() // 1_000)
    versions = _count(documents)
    system.desk.allow(max(CLOSED, system.desk.done()))
    system.wait("documents after the savepoint", lambda: _count(documents) > versions, START_S_MAX)
    driver = system.driver()
    driver.caused += 1
    driver.stop()
    began = system.journal.end()
    restore(layout, taken.parts(layout))
    return replace(by_itself(), began=began)


def _move_away(folder: Path, to: Path) -> Broken:
    folder.rename(to)
    return Broken(lambda: _move_back(folder, to))


def _move_back(folder: Path, away: Path) -> None:
    """Move the folder back while a process may still recreate its path: rename intruders away until the move succeeds.

    Intruders are deleted afterwards, when no process can write into them any more.
    """
    rubbish, until_s = away.with_name(f"{away.name}-rubbish"), time.monotonic() + BACK_S_MAX
    rubbish.mkdir()
    for number in itertools.count():
        with suppress(FileNotFoundError):
            folder.rename(rubbish / str(number))
        try:
            away.rename(folder)
            break
        except OSError:
            if time.monotonic() >= until_s:
                raise
    shutil.rmtree(rubbish, ignore_errors=True)


def _pause_within_a_sealing(system: System, driver: Supervised) -> str:
    """Pause the driver between the storing of documents and the commit of their batch.

    If no period closes within SEALING_S_MAX, pause at any point, and return a sentence.
    """
    documents = system.layout.table("documents") / "_delta_log"
    system.desk.allow(1.0)  # so that a period closes
    until_s, looked_s, versions = time.monotonic() + SEALING_S_MAX, -_LOOK_S, _count(documents)
    while time.monotonic() < until_s:
        if time.monotonic() - looked_s > _LOOK_S:
            system.supervise()
            looked_s, known = time.monotonic(), members(driver.child.pid)  # in advance: it takes some milliseconds
        if _count(documents) > versions:
            _stop(known)
            driver.pause()
            if stored_uncommitted(system.layout):
                return ""
            driver.resume()
            versions = _count(documents)
        system.pause(_SPIN_S)
    driver.pause()
    return f"The worst moment did not come within {SEALING_S_MAX:.0f} s: the driver was stopped at another one."


def _stop(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.glob("*.json"))


def stored_uncommitted(layout: Layout) -> bool:
    """Whether the batch of the last stored documents is uncommitted; the table's log names the batch."""
    checkpoint = Checkpoint(Storage.at(layout.view(VIEW).checkpoint))
    stored = documents_table(layout).opened().counter(checkpoint.query_id() or "")
    return stored is not None and not checkpoint.committed(stored)


def _has_invoice(url: str) -> bool:
    """Whether this server's bill of a customer has an invoice; every customer has a closed period."""
    try:
        with Client(url, direct=True, deadline_s=PROBE_S_MAX) as client:
            return any(period["documents"] for period in client.get(bill_path("c0"))["periods"])
    except StatesideError:
        return False


def _standbys(system: System) -> int:
    return len((standing(system.layout.root, 0) or {"standbys": ()})["standbys"])


def _cluster(system: System) -> Cluster:
    assert system.ground.cluster is not None, "the shape has one"
    return system.ground.cluster
