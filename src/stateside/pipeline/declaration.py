"""A view's declaration, kept beside its checkpoint: a changed query on old state is refused with the difference.

    catalogue.json   the view's key and columns. A state cannot continue with another key or columns. Rollups, computed
                     columns and the archive may change: the state does not contain them, and the replica rebuilds
                     its rollups.
    plan.txt         the whole plan. If only the plan changed, a filter for example, the state fits, but was folded
                     with the old query; only the user can decide whether that is right (`--accept-changes`).

Code inside a Python function does not appear in a plan, and is not compared. `comparison` makes a table of all
differences between an application and its folder.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stateside.core.errors import SettingInvalid, ViewChanged
from stateside.core.layout import Layout, ViewLayout
from stateside.core.storage import Storage, write_atomically
from stateside.journal.payload import ViewFields
from stateside.pipeline.app import App, View
from stateside.pipeline.kafka_source import KafkaEvents
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sources import DataFrameSource, JournalEvents, Source
from stateside.spark_state.batch_log import SHUFFLE_PARTITIONS, Checkpoint
from stateside.spark_state.types import Primitive, parse_type
from stateside.views.catalogue import CATALOGUE, Catalogue, KeyColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBERS = re.compile(
    r"#\d+L?|@[0-9a-f]+| at 0x[0-9a-f]+|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    r"|(?<=CTERelationDef) \d+|(?<=CTERelationRef) \d+"  # numbered over the JVM's lifetime
)
_LAMBDA = re.compile(r"\b(lambda \w+?)_\d+\b")  # PySpark numbers the arguments of lambdas over the process's lifetime
_SEED = re.compile(r"\b(rand|randn|uuid)\((?:Some\()?-?\d+\)+")  # drawn again each time
_DIFFERENCES_MAX = 6


def payload_fields(app: App) -> dict[str, ViewFields]:
    """The payload fields that each view reads from the journal, for `keep_fields`; needs a Spark session."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import DataType, StructType

    found = {}
    for view in app.views.values():
        source = app.source_of(view)
        if not isinstance(source, JournalEvents | KafkaEvents) or not source.dead_letters:
            continue
        fields = getattr(source, "fields", "") or app.fields
        if fields:
            parsed = DataType.fromDDL(fields)
            assert isinstance(parsed, StructType), "fields are a list of columns"
            schema = to_arrow_schema(parsed, timezone="UTC")
            found[view.name] = ViewFields(fields, schema, source.types, source.tags)
    return found


def plan_text(frame: DataFrame, source: Source) -> str:
    """The query's plan without parts that differ from run to run; of the source only its declaration."""
    lines = frame._jdf.queryExecution().analyzed().toString().splitlines()
    ours = [line.rstrip() for line in lines if "StreamingRelation" not in line]
    return _stable("\n".join(ours)) + f"\n{_source_text(source)}\n"


def _source_text(source: Source) -> str:
    return "source" if isinstance(source, DataFrameSource) else _stable(repr(source))


def _stable(text: str) -> str:
    return _SEED.sub(r"\1()", _LAMBDA.sub(r"\1", _NUMBERS.sub("", text)))


def keep(catalogue: Catalogue | None, plan: str, places: ViewLayout, *, accept_changes: bool) -> None:
    """`check`, then write both files."""
    check(catalogue, plan, places, accept_changes=accept_changes)
    if catalogue is not None:
        CATALOGUE.write(places.catalogue, catalogue)
    write_atomically(places.plan, plan.encode())


def check(catalogue: Catalogue | None, plan: str, places: ViewLayout, *, accept_changes: bool) -> None:
    """ViewChanged, with the difference, for a change on a checkpoint that already has batches."""
    if has_run(places):
        found = difference(catalogue, plan, places)
        if found is not None and not (found.acceptable and accept_changes):
            raise _changed(places, found)


def has_run(places: ViewLayout) -> bool:
    return bool(Checkpoint(Storage.at(places.checkpoint)).commits())


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a declaration and the stored one; an `acceptable` one leaves the state usable."""

    what: str
    acceptable: bool = False


def difference(catalogue: Catalogue | None, plan: str, places: ViewLayout) -> Difference | None:
    """The first difference between a planned view and the declaration beside its checkpoint."""
    what = _different_kind(places, is_view=catalogue is not None) or _different_catalogue(catalogue, places)
    if what is not None:
        return Difference(what)
    what = _different_plan(plan, places)
    return None if what is None else Difference(what, acceptable=True)


def difference_before_spark(app: App, view: View, places: ViewLayout) -> Difference | None:
    """The same as far as visible without a plan: kind, key, source."""
    kind = _different_kind(places, is_view=view.key is not None)
    if kind is not None:
        return Difference(kind)
    if view.key is not None and view.state is None:
        before = [column.name for column in Catalogue.load(places.catalogue).key]
        if before != list(view.key):
            return Difference(f"its key was {before} and is {list(view.key)}")
    now = _source_text(app.source_of(view))
    stored = places.plan.read_text().splitlines()[-1:] if places.plan.exists() else [now]  # its last line
    return None if stored == [now] else Difference(f"before: {stored[0]}; now: {now}", acceptable=True)


def check_partitions(app: App, layout: Layout, settings: RunSettings) -> None:
    """SettingInvalid for another number than a state has: Spark would ignore it, and take that of the checkpoint."""
    for places in map(layout.view, app.views if settings.partitions else ()):
        before = state_partitions(places)
        if before not in (None, settings.partitions):
            raise SettingInvalid(
                f"The state of the view {places.name!r} has {before} partitions, "
                f"and {settings.partitions} are asked for",
                where=str(places.root),
                next_step=f"Leave partitions out or set them to {before}; or bring the state to so many first: "
                f"`stateside rescale --dir {layout.root} --partitions {settings.partitions}`",
            )


def state_partitions(places: ViewLayout) -> int | None:
    """How many partitions a view's state has after its last batch; None without one that can have several."""
    checkpoint = Checkpoint(Storage.at(places.checkpoint))
    commits = checkpoint.commits()
    if not commits or all(map(checkpoint.without_key, checkpoint.operators())):
        return None
    found = checkpoint.plan(commits[-1]).conf.get(SHUFFLE_PARTITIONS)
    return None if found is None else int(found)


def _different_kind(places: ViewLayout, *, is_view: bool) -> str | None:
    kinds = ("a reaction", "a view") if is_view else ("a view", "a reaction")
    return None if places.catalogue.exists() == is_view else f"it was {kinds[0]} and is {kinds[1]} now"


def _different_catalogue(catalogue: Catalogue | None, places: ViewLayout) -> str | None:
    if catalogue is None:
        return None
    before = replace(Catalogue.load(places.catalogue), view=catalogue.view)  # a renamed view's has the old name
    if before == replace(catalogue, rollups=before.rollups, computed=before.computed, archive=before.archive):
        return None
    return "; ".join(_differences(before, catalogue)) or "its state is laid out in another way"


def _different_plan(plan: str, places: ViewLayout) -> str | None:
    before = places.plan.read_text() if places.plan.exists() else plan
    if before == plan:
        return None
    lines = difflib.unified_diff(before.splitlines(), plan.splitlines(), lineterm="", n=0)
    changes = [_shortened(line) for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return "; ".join(changes[:_DIFFERENCES_MAX]) + ("; …" if len(changes) > _DIFFERENCES_MAX else "")


def _differences(before: Catalogue, after: Catalogue) -> Iterator[str]:
    for what, one, other in (
        ("key", [_shown(column) for column in before.key], [_shown(column) for column in after.key]),
        ("window", before.window, after.window),
        ("state variable", before.family, after.family),
        ("kind of state", before.kind, after.kind),
    ):
        if one != other:
            yield f"its {what} was {one} and is {other}"
    old, new = ({column.name: column for column in catalogue.columns} for catalogue in (before, after))
    yield from (f"its column {name!r} is gone" for name in old if name not in new)
    yield from (f"its column {name!r} is new" for name in new if name not in old)
    for name in sorted(old.keys() & new.keys()):
        a, b = old[name], new[name]
        if (a.expression, a.type) != (b.expression, b.type):
            yield f"its column {name!r} was {a.expression} {a.type} and is {b.expression} {b.type}"
    if old.keys() == new.keys() and list(old) != list(new):
        yield f"its columns were {list(old)} and are {list(new)}"


def _shown(column: KeyColumn) -> str:
    return f"{column.name} {column.type}" if parse_type(column.type) == Primitive(column.type) else column.name


def _shortened(line: str) -> str:
    text = line[1:].lstrip(" +-:~")
    return f"{'now' if line[0] == '+' else 'before'}: {text[:160]}"


def _changed(places: ViewLayout, found: Difference) -> ViewChanged:
    return ViewChanged(
        f"The view {places.name!r} is not the one that its state was built with: {found.what}",
        where=str(places.root),
        next_step="`stateside check` says what the change costs, `stateside apply` makes it",
    )
