"""Standing by: a run that waits for the leadership of its application's folder before it starts.

    stateside run shop:app --dir D --standby        leads, or waits until the leader is gone
    stateside run shop:app --dir D --take-over      asks the leader to hand over between two batches, then leads
    stateside run shop:app --dir D                  where anybody led before: as --standby, but not for ever

Spark is started, and has rehearsed (`rehearsal`), before anything is waited or asked for.
Without these, in a folder where nobody ever led, there is no lease, and a lock keeps a second driver out (`lease`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stateside.errors import PipelineRunning
from stateside.layout import Layout
from stateside.leadership import Candidate, Leadership, Lease, check_folder
from stateside.pipeline.app import App
from stateside.pipeline.rehearsal import rehearse
from stateside.pipeline.session import start_session, stop_session
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sources import with_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tell = Callable[[str], None]


def needs_lease(layout: Layout, settings: RunSettings) -> bool:
    """Whether a run of this folder must lead."""
    return settings.standby or settings.take_over or Lease(layout.root).exists()


@contextmanager
def standing_by(layout: Layout, settings: RunSettings, told_to_stop: Callable[[], bool]) -> Iterator[Candidate | None]:
    """A candidate that has its name among the members, and gives it back; None if the run is told to stop before.

    SettingInvalid or LeaseInvalid for a folder that cannot hold a lease, IdentityTaken for a name that is in use.
    """
    if settings.standby or settings.take_over:
        check_folder(layout.root, "machine" if settings.standby_scope == "machine" else "shared")
    candidate = Candidate(layout.root, settings.identity, lease_s=settings.lease_s)
    if not candidate.enter(told_to_stop):
        yield None
        return
    try:
        yield candidate
    finally:
        candidate.leave()


def lead(
    candidate: Candidate, layout: Layout, settings: RunSettings, told_to_stop: Callable[[], bool], tell: Tell
) -> Leadership | None:
    """Wait for the leadership; None if the run is told to stop before. PipelineRunning if it may not wait so long.

    Who asks for it waits without end: once the leader has heard that it stops, however long its batch takes, and if
    nobody waited any more then, nobody would lead.
    """
    _tell_leader(candidate, settings, tell)
    waits_on = settings.standby or settings.take_over
    leadership = candidate.wait(told_to_stop, float("inf") if waits_on else settings.lease_s_max)
    if leadership is None and not told_to_stop():
        raise _running(candidate, layout, settings)
    if leadership is not None:
        tell(f"{candidate.identity} leads from epoch {leadership.claim.epoch} on")
    return leadership


@contextmanager
def warmed_up(app: App, layout: Layout, settings: RunSettings) -> Iterator[SparkSession | None]:
    """A session that is ready while another one still leads; None if Spark is to be started by who leads.

    On a cluster it is: a driver that waits there would hold executors which the leader needs.
    """
    if settings.cold or not settings.master.startswith("local"):
        yield None
        return
    conf = with_jars(settings.spark_conf(), map(app.source_of, app.views.values()))
    session = start_session(app.name, layout.spark, master=settings.master, conf=conf)
    try:
        rehearse(app, layout, settings, session)
        yield session
    finally:
        stop_session(session)


def _tell_leader(candidate: Candidate, settings: RunSettings, tell: Tell) -> None:
    """Who leads, if anybody does; who is to take over asks for it."""
    leader = candidate.ask() if settings.take_over else candidate.leader()
    if leader is not None:
        doing = "asks for the leadership" if settings.take_over else "stands by"
        tell(
            f"{candidate.identity} {doing}: {leader.identity} leads, or led last (process {leader.pid}, {leader.host})"
        )


def _running(candidate: Candidate, layout: Layout, settings: RunSettings) -> PipelineRunning:
    leader = candidate.leader()
    who = "another process" if leader is None else f"{leader.identity} (process {leader.pid} on {leader.host})"
    return PipelineRunning(
        f"After {settings.lease_s_max:g} s this folder is still led by {who}",
        where=str(layout.root),
        next_step="Stop that one, or run this one with --standby: it begins when the other one is gone",
    )
