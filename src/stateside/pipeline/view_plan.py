"""Planning of a view: its function applied to its source, the catalogue derived from the plan, the state compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from stateside.core.errors import PipelineFailed, StatesideError, ViewInvalid
from stateside.core.layout import Layout
from stateside.core.wait import wait_until
from stateside.pipeline import declaration
from stateside.pipeline.app import App, View
from stateside.pipeline.derivation import derive_catalogue, derive_state_catalogue
from stateside.pipeline.failures import reason
from stateside.pipeline.progress import NEXT_BATCH, pace_file
from stateside.pipeline.session import has_ended
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sources import JournalEvents, Reading
from stateside.pipeline.watermarks import LateSweep, late_column, times_to_check
from stateside.views.catalogue import Catalogue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_END_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class PlannedView:
    """The streaming DataFrame, the catalogue (None of a reaction), and the plan as text, to detect a changed query."""

    frame: DataFrame
    catalogue: Catalogue | None
    text: str
    late: LateSweep | None = None  # of a view that does more with late events than count them


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans an application's views over one folder, and changes nothing there."""

    app: App
    layout: Layout
    settings: RunSettings
    pause_file: Path

    def plan(self, view: View, session: SparkSession) -> PlannedView:
        """Plan a view; ViewInvalid if it cannot be run as declared, PipelineFailed if Spark ended meanwhile."""
        try:
            return self._plan(view, session)
        except StatesideError:
            raise
        except Exception as error:
            if _has_lost_spark(error, session):
                raise PipelineFailed(
                    f"Spark's JVM ended while the view {view.name!r} was planned", next_step="Run it again"
                ) from error
            # formatted now: Spark's errors have no text once the JVM has ended
            raise ViewInvalid(
                f"The view {view.name!r} fails: {type(error).__name__}: {reason(error)}",
                next_step="Mend its function or the application's fields, then run again",
            ) from error

    def check(self, view: View, session: SparkSession) -> None:
        """Plan a view; ViewInvalid also if its state was built with another declaration."""
        plan, accept = self.plan(view, session), self.settings.accept_changes
        declaration.check(plan.catalogue, plan.text, self.layout.view(view.name), accept_changes=accept)

    def _plan(self, view: View, session: SparkSession) -> PlannedView:
        source = self.app.source_of(view)
        reading = self._reading(view)
        events = source.load(session, reading)
        frame = view.query(events, self.layout)
        _check_streaming(view, frame)
        times = times_to_check(view.name, source, events, frame)
        if times:  # known only from the plan, so load again
            events = source.load(session, replace(reading, times=times))
            frame = view.query(events, self.layout)
        derive = derive_state_catalogue if view.state else derive_catalogue
        catalogue = derive(self.app.name, view, frame) if view.key else None
        late = None if view.late == "count" else self._late_sweep(view, frame, replace(reading, times=times))
        return PlannedView(frame, catalogue, declaration.plan_text(frame, source), late)

    def _late_sweep(self, view: View, frame: DataFrame, reading: Reading) -> LateSweep:
        column = late_column(view.name, frame)
        return LateSweep(view, self.app.source_of(view), reading, self.layout, column)

    def _reading(self, view: View) -> Reading:
        places = self.layout.view(view.name)
        file = pace_file(places) if self.settings.batch_target_ms else None
        adapts = isinstance(self.app.source_of(view), JournalEvents)  # to the file; others have one limit for a start
        found = None if file is None or adapts else NEXT_BATCH.read_if_valid(file)
        return Reading(
            self.layout.journal,
            self.app.fields,
            events_per_batch_max=found or self.settings.events_per_batch_max,
            stop_at=self.settings.stop_at,
            pause_file=self.pause_file,
            pause_ms=self.settings.batch_pause_ms,
            barrier_file=self.layout.barrier,
            limit_file=file,
            refused=places.refused,
            future_us_max=self.settings.future_us_max,
            places=places,
        )


def _has_lost_spark(error: Exception, session: SparkSession) -> bool:
    """Whether Spark's process has ended. A connection breaks shortly before the end is visible."""
    return wait_until(lambda: has_ended(session), _END_S_MAX if isinstance(error, Py4JError | OSError) else 0)


def _check_streaming(view: View, frame: object) -> None:
    if not getattr(frame, "isStreaming", False):
        found = "a DataFrame that is not streaming" if hasattr(frame, "isStreaming") else f"{type(frame).__name__}"
        raise ViewInvalid(
            f"The function of the view {view.name!r} returns {found}, not a streaming DataFrame",
            next_step="Let it transform the events that it is given, and return the result",
        )
