"""Applications: views declared in PySpark, one function each.

    app = App("shop", fields="country string, amount_micros long")

    @app.view(key=["entity", "country"])
    def spending(events):
        return events.groupBy("entity", "country").agg(F.sum("amount_micros").alias("total"))

    @app.reaction(sink=sinks.journal())
    def confirm(events):
        return events.where("type = 'paid'").select("entity", F.lit("confirmed").alias("type"), "time")

A *view* keeps state that is served by key; a *reaction* serves no state, and its rows go to a sink. A declaration costs
nothing: Spark is first imported when the application runs. A function with a second parameter without a default gets
the application's `Layout`, with the paths of the journal and the views' files.

Views may also be SQL text:

    @app.view(key=["customer"])
    def spending(events):
        return stateside.sql("select customer, sum(amount) as total from events group by customer", events=events)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from stateside.core.errors import StatesideError, ViewInvalid
from stateside.core.layout import Layout
from stateside.pipeline.sinks.sink import Guarantee, SinkFactory
from stateside.pipeline.sources import Source, journal
from stateside.views.aggregates import declared_rollups
from stateside.views.catalogue import Computed
from stateside.views.functions import declared_computed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NO_SPARK_YET = (
    "Spark is not running while the module is loaded: use it inside the views' functions only, and give the type of a "
    "function of your own as LongType(), not as 'long'"
)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)
Function = Callable[["DataFrame"], "DataFrame"] | Callable[["DataFrame", Layout], "DataFrame"]
Declared = TypeVar("Declared", bound=Function)
Migration = Callable[[dict[str, Any]], Mapping[str, Any]]  # columns of the new state, from a row of the old one
Migrating = TypeVar("Migrating", bound=Migration)
Backfill = Literal["refuse", "deliver", "skip"]  # what a sink without a key gets when its view is folded again
Late = Literal["count", "dead_letters", "corrections"]  # what becomes of late events, unless a sink takes them
Rows = Literal["closed", "changed"]  # the rows for a view's sink: rows that left the state, or changed rows


@dataclass(frozen=True, slots=True)
class View:
    """A declared view or reaction: source, function, key, and sink.

    A reaction has no `key`, and is not served. `state` names the served state variable of a `transformWithState`.
    `archive` names the table of closed rows. `rollups` names the columns of coarser keys. `computed` columns are made
    by readers; neither the function nor the sink has them.
    """

    name: str
    function: Function
    key: tuple[str, ...] | None = None
    source: Source | None = None
    state: str | None = None
    sink: SinkFactory | None = None
    rows: Rows = "closed"
    guarantee: Guarantee = "exactly-once"
    archive: str | None = None
    rollups: tuple[tuple[str, ...], ...] = ()
    computed: tuple[Computed, ...] = ()
    backfill: Backfill = "refuse"
    late: Late | SinkFactory = "count"

    @property
    def skips(self) -> bool:
        """Whether its sinks get nothing of a backfill; an archive always gets all rows."""
        return self.backfill == "skip" and self.archive is None

    def query(self, events: DataFrame, layout: Layout) -> DataFrame:
        """Apply the function to the events, with the layout for a second parameter."""
        given: tuple[Any, ...] = (events, layout) if _takes_layout(self.function) else (events,)
        return self.function(*given)


class App:
    """Several views, each a streaming query with its own checkpoint, over one journal or over sources of their own.

    `fields` names the payload fields that the views use, with types (DDL). `settings` are the application's own (see
    docs/settings.md); a file and flags override them.
    """

    def __init__(
        self, name: str, *, fields: str = "", source: Source | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name
        self.fields = fields
        self.source = source or journal()
        self.settings = dict(settings or {})
        self.target = ""  # by which `load` found it, for commands in messages
        self.views: dict[str, View] = {}
        self.migrations: dict[str, Migration] = {}

    def view(
        self,
        *,
        key: Sequence[str],
        rollups: Sequence[Sequence[str]] = (),
        computed: Sequence[Computed] = (),
        name: str | None = None,
        source: Source | None = None,
        state: str | None = None,
        sink: SinkFactory | None = None,
        rows: Rows = "closed",
        guarantee: Guarantee = "exactly-once",
        archive: str | None = None,
        backfill: Backfill = "refuse",
        late: Late | SinkFactory = "count",
    ) -> Callable[[Declared], Declared]:
        """Declare the decorated function as a view, by default under its own name.

        `key` has the grouping columns in the order that readers ask by. With a `sink` the view's rows go there as well:
        `closed` rows, once the watermark has passed them and they leave the state, or `changed` rows, batch by batch.
        With an `archive` closed rows go, once, to the Delta table of this name, with the batch that closed them.
        When a changed view is folded again (docs/change.md), its archive gets a new table, and a sink with a key gets
        no row twice. A sink without a key would get all rows again: the change is refused, unless `backfill` is
        "deliver"; or "skip", with which a sink gets nothing of the backfill, and goes on where it was.

        `late` events, whose row the watermark has closed before, are not in the view. They are counted; or become dead
        letters; or their aggregates, a row for each key and batch, go to a sink, or with `corrections` to the table
        ARCHIVE_corrections: each once, like the rows of the view's own sink.

        Each of the `rollups` has some of the key's columns, in the order that readers ask by: the view's rows are added
        up by these columns, exactly in every snapshot; [] is the total of all rows. Rollups have the counts, sums and
        averages of the view; other columns cannot be subtracted when a row changes, and are left out. Rollups may be
        changed on an old folder.

        Each of the `computed` columns is a long that readers compute from the column `of`, a count or a sum of longs,
        by the function in `views/VIEW/steps.json` for the texts of the key columns `by` (`views.functions`). Computed
        columns appear in rows and rollups, and may be changed on an old folder too. The view's sink gets the rows as
        Spark has them, without computed columns, and applies the table itself; the sink also writes the table, each
        entry before it returns from the first batch that needs the entry (`views.functions.extend_functions`).
        """

        def declare(function: Declared) -> Declared:
            called = name or function.__name__
            coarser, made = declared_rollups(called, key, rollups), declared_computed(called, key, computed)
            kept = (coarser, made, backfill, late)
            self._add(View(called, function, tuple(key), source, state, sink, rows, guarantee, archive, *kept))
            return function

        return declare

    def reaction(
        self,
        *,
        sink: SinkFactory,
        name: str | None = None,
        source: Source | None = None,
        rows: Rows = "closed",
        guarantee: Guarantee = "exactly-once",
        backfill: Backfill = "refuse",
    ) -> Callable[[Declared], Declared]:
        """Declare the decorated function as a reaction: its rows go to the sink, and nothing is served.

        Without an aggregation every row is `closed` at once.
        """

        def declare(function: Declared) -> Declared:
            called = name or function.__name__
            declared = View(called, function, source=source, sink=sink, rows=rows, guarantee=guarantee)
            self._add(replace(declared, backfill=backfill))
            return function

        return declare

    def migration(self, view: str) -> Callable[[Migrating], Migrating]:
        """Declare the decorated function as the migration of a changed view's state (`pipeline.migration`).

        `stateside apply` then carries the state over, instead of folding the view again from its events. A migration
        of a view that did not change does nothing: remove it after the change.
        """

        def declare(function: Migrating) -> Migrating:
            self.migrations[view] = function
            return function

        return declare

    def source_of(self, view: View) -> Source:
        """The view's own source, or the application's."""
        return view.source or self.source

    def _add(self, view: View) -> None:
        if not _NAME.fullmatch(view.name):
            raise ViewInvalid(f"{view.name!r} cannot be the name of a view", next_step="Use a to z, 0 to 9 and _")
        if view.name in self.views:
            raise ViewInvalid(
                f"The application {self.name!r} has two views of the name {view.name!r}", next_step="Rename one of them"
            )
        if view.key == ():
            raise ViewInvalid(f"The view {view.name!r} has no key", next_step="Name its grouping columns: key=[…]")
        self._check_choices(view)
        self.views[view.name] = view

    def _check_choices(self, view: View) -> None:
        for what, given, choices in (
            ("rows", view.rows, get_args(Rows)),
            ("guarantee", view.guarantee, get_args(Guarantee)),
            ("backfill", view.backfill, get_args(Backfill)),
            *([] if callable(view.late) else [("late", view.late, get_args(Late))]),
        ):
            if given not in choices:
                raise ViewInvalid(
                    f"The view {view.name!r} has {what}={given!r}", next_step=f"Choose one of {', '.join(choices)}"
                )
        if view.late == "corrections" and view.archive is None:
            raise ViewInvalid(
                f"The view {view.name!r} has late='corrections', but no archive that they would correct",
                next_step="Name one with archive=…, or give late= a sink",
            )
        if view.archive is not None and view.sink is not None:
            raise ViewInvalid(
                f"The view {view.name!r} has both an archive and a sink", next_step="Give it one, and a second view"
            )


def _takes_layout(function: Function) -> bool:
    """Whether the function has a second positional parameter without a default."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # not written in Python: no signature
        return False
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len(places) > 1 and places[1].default is inspect.Parameter.empty


def load(target: str) -> App:
    """The application that `module:attribute` names."""
    module, _, attribute = target.partition(":")
    advice = "Name it like shop:app, with the folder of shop.py on PYTHONPATH or current"
    try:
        found = getattr(import_module(module), attribute or "app")
    except StatesideError:
        raise
    except (ModuleNotFoundError, AttributeError, ValueError, TypeError) as error:
        raise ViewInvalid(f"There is no application {target!r}: {error}", next_step=advice) from error
    except Exception as error:
        raise ViewInvalid(
            f"The module of {target!r} fails: {type(error).__name__}: {error}",
            next_step=_NO_SPARK_YET if "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error) else "Mend it, then run again",
        ) from error
    if not isinstance(found, App):
        raise ViewInvalid(f"{target!r} is a {type(found).__name__}, not an App", next_step=advice)
    found.target = target
    return found


def sql(text: str, **frames: DataFrame) -> DataFrame:
    """The DataFrame of this SQL text over the given frames, by name.

    Names are resolved now, and leave nothing in the session.
    """
    assert frames, "give at least one frame by name: sql(text, events=events)"
    session = next(iter(frames.values())).sparkSession
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    try:
        return session.sql(text)
    finally:
        for name in frames:
            session.catalog.dropTempView(name)
