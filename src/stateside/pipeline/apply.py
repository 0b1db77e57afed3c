"""Making the changes of an application in a folder that runs: `stateside apply`.

Each changed view gets a new generation, which is filled beside the old one and then takes its place:

1. The changes are found (`comparison`), and the generations to fill are made: a folder each, registered as `next`, so
   that servers follow it. An interrupted backfill of the same declaration is resumed; a kept generation of the same
   declaration is taken again, and only catches up: so applying the old code again is a way back.
2. The generations are filled: the new queries read their sources from the beginning, in very large batches (a large
   batch touches each key once), in this process's own Spark session. The old run goes on in its own process.
3. The backfill is repeated, from the end of the last round to the present end, until a round is short, or hardly
   shorter than the one before: then events come in about as fast as they are folded.
4. The running job, if there is one, is asked to stop after its batch: by its lease, or by the file `handover`. This
   process takes the driver's lock, or leads.
5. The rest is folded: each new generation covers the last position of the old one. States that are migrated
   (`migration`) are carried over now, while no batch of the old ones is under way.
6. The switch: one file names the current generation of every view, and is replaced in one step, for all servers that
   share the folder. The generations before are kept, one for each view.
7. This process goes on as the run of the new application, or ends if nothing was running.

A process that is killed at any step leaves either all old generations served or all new ones, and the same command goes
on from there.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from stateside.core.errors import PipelineFailed, PipelineRunning, RequestInvalid, ViewChanged
from stateside.core.layout import POINTERS, Layout, Pointers, ViewGeneration, ViewLayout, ViewPointer
from stateside.core.lease import holders, note_holders
from stateside.core.positions import Position
from stateside.core.processes import signals
from stateside.core.storage import Storage, try_lock_open, unlock_open, write_atomically
from stateside.core.wait import wait_until
from stateside.leadership import Leadership
from stateside.pipeline import comparison, declaration
from stateside.pipeline.app import App, View
from stateside.pipeline.comparison import ViewChange
from stateside.pipeline.foreground import Teller, lead, lead_until, needs_lease, run_leader, standing_by
from stateside.pipeline.migration import StateMigration, finished_batch
from stateside.pipeline.runner import Runner, check_app, note_removed_views
from stateside.pipeline.session import jvm_pid, start_session, stop_session
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.sink import OnStep, ignore_step
from stateside.pipeline.sources import with_jars
from stateside.pipeline.view_plan import PlannedView, Planner
from stateside.spark_state.batch_log import Checkpoint
from stateside.views.catalogue import CATALOGUE, Catalogue
from stateside.views.heartbeat import Heartbeat
from stateside.views.savepoint import check_whole
from stateside.views.view_generations import KEPT, alone, carry_over, new_generation, sweep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_FULL_SPEED: dict[str, Any] = {  # settings of a backfill
    "events_per_batch_max": 4_000_000,
    "batch_interval_ms": 0,
    "batch_pause_ms": 0,
    "batch_target_ms": 0,
    "until_caught_up": False,
}
ROUND_S_MAX = 5.0  # a shorter round of catching up is the last one before the old job stops
HOLD_S_MAX = 60.0  # a backfill waits so long for what is away, a disk with room for example, then counts restarts
HANDOVER_S_MAX = 120.0  # for the old job's batch, and the end of its JVM
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class ChangeSelection:
    """What to apply: all changes, or those of some `views`; and views to `refold` although they did not change.

    `exit_`: end after the switch even if a job was running before.
    """

    views: tuple[str, ...] = ()
    refold: tuple[str, ...] = ()
    exit_: bool = False

    def has(self, change: ViewChange) -> bool:
        return not self.views or change.view in self.views


def compared(app: App, settings: RunSettings, folder: Path | None) -> list[ViewChange]:
    """The verdicts on all views (`comparison`); without a folder only whether all views can be planned.

    Starts Spark only if they are not all known without it. Changes nothing except scratch files.
    """
    check_app(app)
    layout = Layout(folder) if folder is not None else None
    found = [] if layout is None else comparison.compare(app, layout)
    judged = {each.view for each in found if each.verdict != "new"}
    if layout is not None and (judged >= app.views.keys() or not comparison.known_views(layout)):
        return found
    with TemporaryDirectory(prefix="stateside-check-") as scratch:
        conf = with_jars(settings.spark_conf(), map(app.source_of, app.views.values()))
        session = start_session(app.name, Path(scratch), master=settings.master, conf=conf)
        try:
            places = layout or Layout(Path(scratch))
            planner = Planner(app, places, settings, places.pause)
            plans = {name: planner.plan(view, session) for name, view in app.views.items()}
            return comparison.compare(app, places, lambda view: plans[view.name])
        finally:
            stop_session(session)


class _Stopped(Exception):
    """A signal came: the backfill ends here, and is resumed by the next call."""


def apply(
    app: App,
    folder: Path,
    settings: RunSettings,
    teller: Teller,
    wanted: ChangeSelection | None = None,
    on_step: OnStep = ignore_step,
    session: SparkSession | None = None,
) -> None:
    """Make the changes, and go on as the run of the application if one was running.

    A given `session` is left running at the end; without one the call starts and stops its own.

    ViewChanged if a view must be new, PipelineRunning while another process applies changes.
    """
    check_app(app)
    layout, wanted = Layout(folder), wanted or ChangeSelection()
    for name in {*wanted.views, *wanted.refold} - app.views.keys():
        raise RequestInvalid(
            f"The application {app.name!r} has no view {name!r}", next_step=f"It has: {', '.join(app.views)}"
        )
    _refuse_new(app, layout, comparison.compare(app, layout), wanted)  # Spark takes seconds to start
    with signals() as came, suppress(_Stopped), ExitStack() as stack:
        _Applying(app, layout, settings, teller, wanted, on_step, lambda: bool(came), session).run(stack)


class _Applying:
    """One application of changes."""

    def __init__(
        self,
        app: App,
        layout: Layout,
        settings: RunSettings,
        teller: Teller,
        wanted: ChangeSelection,
        on_step: OnStep,
        told_to_stop: Callable[[], bool],
        session: SparkSession | None,
    ) -> None:
        self._given_session = session
        self._app, self._layout, self._settings, self._teller = app, layout, settings, teller
        self._wanted, self._on_step, self._told_to_stop = wanted, on_step, told_to_stop

    def run(self, stack: ExitStack) -> None:
        """All steps."""
        own = stack.enter_context(alone(self._layout, self._settings.lease_s_max))
        driver = os.open(self._layout.driver_lock, os.O_RDWR | os.O_CREAT, 0o666)  # locked later, for the JVM as well
        stack.callback(os.close, driver)
        session = self._session(own, driver, stack)
        self._on_step(1)
        plans, chosen = self._found(session)
        if not chosen:
            self._teller.note("Nothing has changed: all views continue")
            return
        migrated = [each.view for each in chosen if each.migrated]
        made = {each.view: plans[each.view] for each in chosen if each.filled or each.migrated}
        register(self._layout, made, {*self._wanted.refold, *migrated}, self._settings.partitions)
        with self._filling([each.view for each in chosen if each.filled], session, own) as catch_up:
            self._on_step(2)
            catch_up()
            self._on_step(3)
            before_s = math.inf
            while ROUND_S_MAX < (took_s := catch_up()) < before_s / 2:
                before_s = took_s
            self._on_step(4)
            was_running, leadership = self._taken_over(driver, session, stack)
            self._on_step(5)
            catch_up()
        for name in migrated:
            self._migrate(name, session)
        self._on_step(6)
        self._switch(chosen, leadership)
        unlock_open(own)  # the next change may be applied while this run goes on
        self._on_step(7)
        if was_running and not self._wanted.exit_:
            self._go_on(session, driver, leadership)
        else:
            note_removed_views(self._app, self._layout)

    def _session(self, own: int, driver: int, stack: ExitStack) -> SparkSession:
        if self._given_session is not None:
            return self._given_session
        session = start_session(
            self._app.name,
            self._layout.spark / "apply",
            master=self._settings.master,
            conf=with_jars(self._settings.spark_conf(), map(self._app.source_of, self._app.views.values())),
            lease=own,
            further=(driver,),
            cluster_s_max=self._settings.cluster_s_max,
        )
        stack.callback(stop_session, session)
        return session

    def _found(self, session: SparkSession) -> tuple[Mapping[str, PlannedView], list[ViewChange]]:
        """The plans of all views, and the changes to make."""
        planner = Planner(self._app, self._layout, self._settings, self._layout.pause)
        plans = {name: planner.plan(view, session) for name, view in self._app.views.items()}
        found = comparison.compare(self._app, self._layout, lambda view: plans[view.name], self._wanted.refold)
        _refuse_new(self._app, self._layout, found, self._wanted)
        staying = comparison.part_of(self._app, [each.view for each in found if each.verdict == "continues"])
        declaration.check_partitions(staying, self._layout, self._settings)
        self._teller.note(comparison.table(found))
        return plans, [each for each in found if self._wanted.has(each) and self._is_due(each)]

    def _is_due(self, change: ViewChange) -> bool:
        if change.verdict == "removed":
            heartbeat = Heartbeat.load(self._layout.view(change.view).heartbeat)
            return heartbeat is not None and heartbeat.state != "removed"
        return change.verdict != "continues"

    @contextmanager
    def _filling(self, names: Sequence[str], session: SparkSession, own: int) -> Iterator[Callable[[], float]]:
        """The queries of the generations to fill; gives a function that waits until they have all present events.

        The function returns the seconds that this took.
        """
        tell, skipping = _Progress(self._teller).tell, [name for name in names if self._skips(name)]

        def runner(names: Sequence[str], stop_at: Position | None = None) -> Runner:
            pointers, hold_s_max = self._layout.pointers(), min(self._settings.hold_s_max, HOLD_S_MAX)
            settings = replace(self._settings, **AT_FULL_SPEED, hold_s_max=hold_s_max, stop_at=stop_at)
            layout = Layout(self._layout.root, tuple(self._layout.at(name, _next(pointers[name])) for name in names))
            part = comparison.part_of(self._app, names)
            return Runner(part, layout, settings, session=session, on_beat=tell, lock=own)

        with ExitStack() as stack:
            others = [name for name in names if name not in skipping]
            running = [stack.enter_context(runner(others))] if others else []

            def catch_up() -> float:
                began_s = time.monotonic()
                with _resumable():
                    for each in running:
                        each.run_to_end(self._told_to_stop)
                    for name in skipping:  # no further than the old one: later rows are for its sink to get
                        with runner([name], _position(self._layout.view(name))) as one:
                            one.run_to_end(self._told_to_stop)
                if self._told_to_stop():
                    raise _Stopped
                return time.monotonic() - began_s

            yield catch_up

    def _skips(self, name: str) -> bool:
        return self._app.views[name].skips and self._layout.pointers()[name].current is not None

    def _migrate(self, name: str, session: SparkSession) -> None:
        """Carry a view's state over to the generation that step 1 has made for it."""
        old, new = self._layout.view(name), self._layout.at(name, _next(self._layout.pointers()[name]))
        shutil.rmtree(new.root, ignore_errors=True)  # the remains of an earlier attempt
        carry_over(old, new.root)
        one = replace(self._settings, **AT_FULL_SPEED | {"events_per_batch_max": 1})
        planner = Planner(self._app, Layout(self._layout.root, (new,)), one, self._layout.pause)
        planned = planner.plan(self._app.views[name], session)
        assert planned.catalogue is not None, "a reaction has no state"
        before, function = Catalogue.load(old.catalogue), self._app.migrations[name]

        def told(rows: int, _: int) -> None:
            self._teller.note(f"{name}: {rows:,} rows carried over")

        migration = StateMigration(old.checkpoint, new.checkpoint, before, planned.catalogue, function, told)
        migration.run(planned.frame)
        CATALOGUE.write(new.catalogue, planned.catalogue)
        write_atomically(new.plan, planned.text.encode())

    def _taken_over(self, driver: int, session: SparkSession, stack: ExitStack) -> tuple[bool, Leadership | None]:
        """Whether a job was running, and the leadership where there is a lease; now this process is the only driver."""
        was_running, leads = not try_lock_open(driver), needs_lease(self._layout, self._settings)
        if not try_lock_open(driver, shared=leads):  # leaders share the lock: this job has no lease
            self._teller.note("The running job is asked to stop after its batch")
            self._ask(driver, shared=leads)
        leadership = self._elected(stack) if leads else None
        check_whole(self._layout)
        note_holders(driver, os.getpid(), *filter(None, [jvm_pid(session)]))
        return was_running, leadership

    def _elected(self, stack: ExitStack) -> Leadership:
        asking = replace(self._settings, take_over=True)
        candidate = stack.enter_context(standing_by(self._layout, asking, self._told_to_stop))
        if candidate is not None:
            leadership = lead(candidate, self._layout, asking, self._told_to_stop, self._teller.note)
            if leadership is not None:
                stack.callback(leadership.release)
                return leadership
        raise _Stopped

    def _ask(self, driver: int, *, shared: bool) -> None:
        """Have the running job stop. A run that is just starting removes the request, so the request is repeated."""

        def is_free() -> bool:
            if self._told_to_stop():
                raise _Stopped
            self._layout.handover.touch()
            return try_lock_open(driver, shared=shared)

        try:
            if not wait_until(is_free, HANDOVER_S_MAX, _POLL_S):
                raise PipelineRunning(
                    f"The running job (process {holders(self._layout.driver_lock)}) does not end",
                    where=str(self._layout.root),
                    next_step="Stop it, then repeat this command: the backfill is done, and is not repeated",
                )
        finally:
            self._layout.handover.unlink(missing_ok=True)

    def _switch(self, chosen: Sequence[ViewChange], leadership: Leadership | None) -> None:
        layout = self._layout if leadership is None else Layout(leadership.root)
        before = layout.pointers()
        for name in (each.view for each in chosen if each.filled or each.migrated):
            _check_covers(layout, name, before[name])
            if self._skips(name):
                _check_delivered_to(self._app.views[name], layout.view(name), layout.at(name, _next(before[name])))
        after = switched(before, chosen)
        POINTERS.write(layout.generations, after)
        sweep(self._layout)
        for each in chosen:
            self._teller.note(_told(each, after.get(each.view)))

    def _go_on(self, session: SparkSession, driver: int, leadership: Leadership | None) -> None:
        settings, tell = self._settings, self._teller.tell
        runner = Runner(
            self._app, self._layout, settings, session=session, on_beat=tell, leadership=leadership, lock=driver
        )
        if leadership is not None:
            run_leader(runner, leadership, self._told_to_stop, self._teller)
            return
        with runner:
            lead_until(runner, self._layout, self._told_to_stop, self._teller)


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except PipelineFailed as error:
        raise type(error)(
            error.what,
            where=error.where,
            next_step="Nothing was switched. Mend the cause and repeat this command, which resumes the backfill",
        ) from error


def register(layout: Layout, plans: Mapping[str, PlannedView], refold: Collection[str], partitions: int = 0) -> None:
    """Step 1: a `next` generation for each of these views, resumed if there is one of the same declaration.

    With a number of `partitions` only a generation with as many is resumed.
    """
    pointers = layout.pointers()
    for name, planned in plans.items():
        pointer = pointers.get(name) or ViewPointer(ViewGeneration(1, name) if _has_run(layout, name) else None)
        usable = [each for each in pointer.kept if name not in refold and _has_run(layout, name, each)]
        found = [each for each in (pointer.next, *usable) if each and _fits(planned, layout.at(name, each), partitions)]
        pointers[name] = replace(pointer, next=found[0] if found else new_generation(layout, name, pointer))
    POINTERS.write(layout.generations, pointers)
    for name in plans:
        layout.at(name, _next(pointers[name])).root.mkdir(parents=True, exist_ok=True)
    sweep(layout)


def _has_run(layout: Layout, name: str, generation: ViewGeneration | None = None) -> bool:
    return declaration.has_run(layout.view(name) if generation is None else layout.at(name, generation))


def _fits(planned: PlannedView, places: ViewLayout, partitions: int) -> bool:
    """Whether a generation was, or can be, filled by this query."""
    if not declaration.has_run(places):
        return True
    if partitions and declaration.state_partitions(places) not in (None, partitions):
        return False
    return declaration.difference(planned.catalogue, planned.text, places) is None


def _next(pointer: ViewPointer) -> ViewGeneration:
    assert pointer.next is not None, "step 1 has registered it"
    return pointer.next


def switched(pointers: Pointers, chosen: Sequence[ViewChange], kept_max: int = KEPT) -> Pointers:
    """The pointers after step 6: filled generations are current, and renamed views have their old folder."""
    after = dict(pointers)
    for change in chosen:
        if change.was is not None:
            after[change.view] = after.pop(change.was, ViewPointer(ViewGeneration(1, change.was)))
        elif change.filled or change.migrated:
            pointer = after[change.view]
            before = [each for each in (pointer.current, *pointer.kept) if each not in (None, pointer.next)]
            after[change.view] = ViewPointer(pointer.next, kept=tuple(each for each in before if each)[:kept_max])
    return {name: pointer for name, pointer in after.items() if pointer != ViewPointer(ViewGeneration(1, name))}


def _check_covers(layout: Layout, name: str, pointer: ViewPointer) -> None:
    """The new generation has read everything that the old one has."""
    if pointer.current is None:
        return
    new, old = _position(layout.at(name, _next(pointer))), _position(layout.at(name, pointer.current))
    if not new.covers(old):
        raise PipelineFailed(
            f"The new generation of the view {name!r} stands at {new}, and the old one at {old}",
            where=str(layout.root),
            next_step="Repeat the command: nothing was switched",
        )


def _check_delivered_to(view: View, old: ViewLayout, new: ViewLayout) -> None:
    """The sink has the rows of all batches up to the position of both generations, and none beyond it."""
    checkpoint = Checkpoint(Storage.at(old.checkpoint))
    last = finished_batch(checkpoint, view.name)
    finished_batch(Checkpoint(Storage.at(new.checkpoint)), view.name)
    closes = view.rows == "closed" and any(map(checkpoint.aggregates, checkpoint.operators()))
    if _position(new) != _position(old) or (closes and last.watermark_us != checkpoint.plan(last.batch).watermark_us):
        raise PipelineFailed(
            f"The sink of the view {view.name!r} does not have all rows up to {_position(new)}",
            where=str(old.root),
            next_step="Nothing was switched. Run the application, as it was, with --until-caught-up; then repeat this",
        )


def _position(places: ViewLayout) -> Position:
    checkpoint = Checkpoint(Storage.at(places.checkpoint))
    commits = checkpoint.commits()
    return checkpoint.plan(commits[-1]).position if commits else Position.start()


def _refuse_new(app: App, layout: Layout, found: Sequence[ViewChange], wanted: ChangeSelection) -> None:
    """ViewChanged for views that cannot be folded again, or that would keep the run from going on."""
    stuck = [each for each in found if wanted.has(each) and each.verdict == "must be new"]
    if stuck:
        raise ViewChanged(
            f"The application {app.name!r} has a view that cannot be changed:\n{comparison.table(stuck)}\n",
            where=str(layout.root),
            next_step="Give the view another name, or take the change back",
        )
    others = [each.view for each in found if each.refused and not wanted.has(each)]
    if others and not wanted.exit_:
        raise ViewChanged(
            f"The application {app.name!r} could not run after this: {', '.join(others)} changed as well",
            where=str(layout.root),
            next_step="Apply all changes, or end after this one: --exit",
        )


class _Progress:
    """Reports each batch of a backfill."""

    def __init__(self, teller: Teller) -> None:
        self._teller, self._events, self._why = teller, dict[str, int](), dict[str, str | None]()

    def tell(self, view: str, heartbeat: Heartbeat, finished: list[dict[str, Any]]) -> None:
        if heartbeat.why not in (None, self._why.get(view)):
            self._teller.note(f"{view}: {heartbeat.state}: {heartbeat.why}")
        self._why[view] = heartbeat.why
        for progress in finished:
            self._events[view] = self._events.get(view, 0) + progress["numInputRows"]
            if progress["numInputRows"]:
                rate = progress.get("processedRowsPerSecond") or 0.0
                self._teller.note(f"{view}: {self._events[view]:,} events folded, {rate:,.0f} a second")


def _told(change: ViewChange, pointer: ViewPointer | None) -> str:
    if change.verdict == "removed":
        return f"{change.view}: removed; its last rows are served on"
    number = 1 if pointer is None or pointer.current is None else pointer.current.number
    kept = "" if pointer is None or not pointer.kept else f"; generation {pointer.kept[0].number} is kept"
    return f"{change.view}: generation {number} is served from now on{kept}"
