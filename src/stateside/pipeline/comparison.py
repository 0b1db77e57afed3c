"""The differences between an application and its folder: the table of `stateside check`, and of a refused `run`.

    continues            the view goes on from its last batch
    can be migrated      its state is carried over row by row, by the application's migration (`migration`, `apply`)
    needs a backfill     its state does not fit, and is folded again from its source, beside the old one (`apply`)
    must be new          its state does not fit, and cannot be folded again: give the view another name
    new                  it has not run here
    renamed              it has the declaration of a view that the application no longer has, and takes over its state
    removed              the application no longer declares it; its last rows are served on

Kind, key and source are compared without Spark, columns and plan with it (`declaration`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from stateside.core.errors import StatesideError, ViewChanged
from stateside.core.layout import Layout, ViewLayout
from stateside.core.storage import size_of
from stateside.journal import open_journal
from stateside.journal.backends.kafka import KafkaJournal
from stateside.pipeline import migration
from stateside.pipeline.app import App, View
from stateside.pipeline.declaration import Difference, difference, difference_before_spark, has_run
from stateside.pipeline.sinks.sink import is_keyed
from stateside.pipeline.sources import DataFrameSource, JournalEvents
from stateside.pipeline.view_plan import PlannedView
from stateside.views.catalogue import Catalogue

Verdict = Literal["continues", "can be migrated", "needs a backfill", "must be new", "new", "renamed", "removed"]
Plan = Callable[[View], PlannedView]
_ACCEPTED = ("with states folded by the old query", "with a new state under the new name")
_FILLED: tuple[Verdict, ...] = ("needs a backfill", "new")


@dataclass(frozen=True, slots=True)
class ViewChange:
    """The verdict on one view, with the reason; for a backfill its cost: events to fold, bytes of the state beside."""

    view: str
    verdict: Verdict
    why: str = ""
    events: int | None = None
    bytes: int | None = None
    acceptable: bool = False  # the state fits, though folded by another query; or can be left for a new one
    was: str | None = None  # the old name of a renamed view

    @property
    def filled(self) -> bool:
        """Whether a generation has to be filled for it."""
        return self.verdict in _FILLED

    @property
    def migrated(self) -> bool:
        return self.verdict == "can be migrated"

    @property
    def refused(self) -> bool:
        """Whether a run must not go on without `stateside apply`."""
        return self.migrated or self.verdict in ("needs a backfill", "must be new", "renamed")


def known_views(layout: Layout) -> dict[str, ViewLayout]:
    """The views and reactions that have run in a folder, by name: the current generation of each."""
    names = {view.name for view in layout.folders()} | layout.pointers().keys()
    return {name: places for name in sorted(names) if has_run(places := layout.view(name))}


def compare(app: App, layout: Layout, plan: Plan | None = None, refold: Iterable[str] = ()) -> list[ViewChange]:
    """The verdicts on all views; without a `plan` only on those that can be judged without Spark.

    Views to `refold` need a backfill even if nothing changed.
    """
    known, again = known_views(layout), set(refold)
    found = {}
    for view in app.views.values():
        if (change := _judged(app, layout, view, known.get(view.name), plan, view.name in again)) is not None:
            found[view.name] = change
    left = {name: places for name, places in known.items() if name not in app.views}
    renamed = {} if plan is None else dict(_renamed(app, found, left, plan))
    gone = [ViewChange(name, "removed", "not declared") for name in left if name not in renamed]
    was = {each.view: each for each in renamed.values()}
    return [*(was.get(name, change) for name, change in found.items()), *gone]


def _judged(
    app: App, layout: Layout, view: View, places: ViewLayout | None, plan: Plan | None, again: bool
) -> ViewChange | None:
    if places is None:
        return ViewChange(view.name, "new", events=_events(app, layout, view))
    found = None if view.name in app.migrations else difference_before_spark(app, view, places)
    if found is None and again:
        found = Difference("it is to be folded again")
    if found is None and plan is None:
        return None
    if found is None and plan is not None:
        planned = plan(view)
        found = difference(planned.catalogue, planned.text, places)
        if found is not None and view.name in app.migrations and not found.acceptable:
            return _to_be_migrated(app, layout, view, places, found, planned.catalogue)
    if found is None:
        return ViewChange(view.name, "continues")
    return _to_be_filled(app, layout, view, places, found)


def _to_be_migrated(
    app: App, layout: Layout, view: View, places: ViewLayout, found: Difference, after: Catalogue | None
) -> ViewChange:
    if after is None or not places.catalogue.exists():
        return _to_be_filled(app, layout, view, places, found)
    why_not = migration.obstacle(Catalogue.load(places.catalogue), after)
    if why_not is not None:
        return _to_be_filled(app, layout, view, places, Difference(f"{found.what}; {why_not}"))
    return ViewChange(view.name, "can be migrated", found.what, bytes=size_of(places.checkpoint))


def _to_be_filled(app: App, layout: Layout, view: View, places: ViewLayout, found: Difference) -> ViewChange:
    obstacle = _obstacle(app, layout, view, places)
    if obstacle is not None:
        return ViewChange(view.name, "must be new", f"{found.what}; {obstacle}", acceptable=found.acceptable)
    cost = _events(app, layout, view), sum(map(size_of, (places.checkpoint, places.replica)))
    return ViewChange(view.name, "needs a backfill", found.what, *cost, acceptable=found.acceptable)


def _obstacle(app: App, layout: Layout, view: View, places: ViewLayout) -> str | None:
    """Why a view cannot be folded again."""
    source = app.source_of(view)
    if places.catalogue.exists() != (view.key is not None):
        return "a view and a reaction have nothing in common"
    if isinstance(source, DataFrameSource):
        return "its source cannot be read again from the beginning"
    if isinstance(source, JournalEvents) and source.start is None and (begin := _begin(layout)):
        return f"retention has dropped its first {begin:,} events"
    sinks = [sink for sink in (view.sink, view.late) if callable(sink)]
    if view.skips and sinks and not isinstance(source, JournalEvents):
        return "only a journal is read again up to where its sink is: backfill='skip' is not possible"
    if not view.skips and view.backfill != "deliver" and not all(map(is_keyed, sinks)):
        return "its sink would get all rows a second time, and has no key: declare backfill='deliver' or 'skip'"
    return None


def _renamed(
    app: App, found: Mapping[str, ViewChange], left: Mapping[str, ViewLayout], plan: Plan
) -> Iterator[tuple[str, ViewChange]]:
    """The views that are gone and came again under another name, by their old name."""
    new = {name: plan(app.views[name]) for name, change in found.items() if change.verdict == "new"} if left else {}
    for old, places in left.items():
        same = [name for name, planned in new.items() if _is_same(planned, places)]
        if len(same) == 1:
            del new[same[0]]
            yield old, ViewChange(same[0], "renamed", f"it was {old!r}", acceptable=True, was=old)


def _is_same(planned: PlannedView, places: ViewLayout) -> bool:
    return (planned.catalogue is None) == (not places.catalogue.exists()) and (
        difference(planned.catalogue, planned.text, places) is None
    )


def _events(app: App, layout: Layout, view: View) -> int | None:
    """The events that a fold reads; None if only the source knows."""
    if not isinstance(app.source_of(view), JournalEvents):
        return None
    try:
        journal = open_journal(layout.journal)
        return None if isinstance(journal, KafkaJournal) else journal.end().events() - _begin(layout)
    except (OSError, StatesideError):
        return None


def _begin(layout: Layout) -> int:
    journal = open_journal(layout.journal)
    return 0 if isinstance(journal, KafkaJournal) else journal.begin().events()


def refuse(app: App, layout: Layout, changes: Sequence[ViewChange], *, accept_changes: bool = False) -> None:
    """ViewChanged, with the table, if a run must not go on."""
    refused = [each for each in changes if each.refused and not (accept_changes and each.acceptable)]
    if not refused:
        return
    accept = all(each.acceptable for each in refused)
    raise ViewChanged(
        f"The application {app.name!r} is not the one that its state was built with:\n{table(changes)}\n",
        where=str(layout.root),
        next_step=f"`{command(app, layout)}` makes the change while the old rows are served"
        + (f"; or go on {_ACCEPTED[refused[0].verdict == 'renamed']}: --accept-changes" if accept else "")
        + "; or take the change back",
    )


def command(app: App, layout: Layout) -> str:
    """The command that makes an application's changes in a folder."""
    return f"stateside apply {app.target or app.name} --dir {layout.root}"


def table(changes: Sequence[ViewChange]) -> str:
    """The verdicts, a line each."""
    wide = max((len(each.view) for each in changes), default=0)
    return "\n".join(f"  {each.view:<{wide}}  {each.verdict:<16}  {_reason(each)}".rstrip() for each in changes)


def as_json(changes: Sequence[ViewChange]) -> list[dict[str, Any]]:
    return [asdict(each) for each in changes]


def _reason(change: ViewChange) -> str:
    cost = [f"{change.events:,} events to fold"] if change.filled and change.events else []
    cost += [f"{change.bytes:,} bytes beside"] if change.bytes is not None else []
    return "; ".join([change.why] * bool(change.why) + ([", ".join(cost)] if cost else []))


def part_of(app: App, names: Iterable[str]) -> App:
    """The application with these views only."""
    part, chosen = App(app.name, fields=app.fields, source=app.source, settings=app.settings), set(names)
    part.target, part.migrations = app.target, app.migrations
    part.views = {name: view for name, view in app.views.items() if name in chosen}
    return part
