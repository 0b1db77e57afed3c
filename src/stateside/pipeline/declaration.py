"""What a view was declared as, kept beside its checkpoint: a changed query on old state is refused with the difference.

    catalogue.json   the view's key and columns. Another one cannot go on with the same state. Only its rollups, its
                     computed columns and its archive may change, of which the state knows nothing; the replica makes
                     its rollups anew then.
    plan.txt         the whole plan. If only this changed, a filter for example, the state fits; but it was folded with
                     the old query, and only the user can say whether that is right (`--accept-changes`).

What Spark does not show in a plan, the code inside a Python function, is not compared.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from stateside.checkpoint.catalogue import Catalogue, KeyColumn
from stateside.checkpoint.log import Checkpoint
from stateside.checkpoint.types import Primitive, parse_type
from stateside.errors import ViewInvalid
from stateside.journal.fields import ViewFields
from stateside.layout import ViewLayout
from stateside.pipeline.app import App
from stateside.pipeline.kafka_events import KafkaEvents
from stateside.pipeline.sources import JournalEvents, Source, Stream
from stateside.storage import Storage, write_atomically

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBERS = re.compile(
    r"#\d+L?|@[0-9a-f]+| at 0x[0-9a-f]+|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    r"|(?<=CTERelationDef) \d+|(?<=CTERelationRef) \d+"  # counted through the JVM's life
)
_LAMBDA = re.compile(r"\b(lambda \w+?)_\d+\b")  # PySpark counts the names of lambdas' arguments through, too
_SEED = re.compile(r"\b(rand|randn|uuid)\((?:Some\()?-?\d+\)+")  # drawn anew each time
_DIFFERENCES_MAX = 6
_NEW_FOLDER = "Take the change back, or run it on a new --dir with a copy of the journal"


def payload_fields(app: App) -> dict[str, ViewFields]:
    """The payload's fields that each view reads from the journal, for `journal.fields`; needs a Spark session."""
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
    """The query's plan without what differs from run to run; of the source only what it was declared with."""
    lines = frame._jdf.queryExecution().analyzed().toString().splitlines()
    ours = [line.rstrip() for line in lines if "StreamingRelation" not in line]
    return _stable("\n".join([*ours, "source" if isinstance(source, Stream) else repr(source)]) + "\n")


def _stable(text: str) -> str:
    return _SEED.sub(r"\1()", _LAMBDA.sub(r"\1", _NUMBERS.sub("", text)))


def keep(catalogue: Catalogue | None, plan: str, places: ViewLayout, *, accept_changes: bool) -> None:
    """Write both files, after a `check`."""
    check(catalogue, plan, places, accept_changes=accept_changes)
    if catalogue is not None:
        write_atomically(places.catalogue, catalogue.as_json())
    write_atomically(places.plan, plan.encode())


def check(catalogue: Catalogue | None, plan: str, places: ViewLayout, *, accept_changes: bool) -> None:
    """ViewInvalid, with the difference, for a change on a checkpoint that has batches already."""
    if Checkpoint(Storage.at(places.checkpoint)).commits():
        _check_catalogue(catalogue, places)
        if not accept_changes:
            _check_plan(plan, places)


def _check_catalogue(catalogue: Catalogue | None, places: ViewLayout) -> None:
    before = Catalogue.load(places.catalogue) if places.catalogue.exists() else None
    if before is None and catalogue is None:
        return
    if before is None or catalogue is None:
        kinds = ("a view", "a reaction") if catalogue is None else ("a reaction", "a view")
        raise _changed(places, f"it was {kinds[0]} and is {kinds[1]} now", _NEW_FOLDER)
    if before != replace(catalogue, rollups=before.rollups, computed=before.computed, archive=before.archive):
        difference = "; ".join(_differences(before, catalogue)) or "its state is laid out in another way"
        raise _changed(places, difference, _NEW_FOLDER)


def _check_plan(plan: str, places: ViewLayout) -> None:
    before = places.plan.read_text() if places.plan.exists() else plan
    if before == plan:
        return
    lines = difflib.unified_diff(before.splitlines(), plan.splitlines(), lineterm="", n=0)
    changes = [_shortened(line) for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    shown = "; ".join(changes[:_DIFFERENCES_MAX]) + ("; …" if len(changes) > _DIFFERENCES_MAX else "")
    raise _changed(
        places, shown, f"{_NEW_FOLDER}, or go on with the state as it is, folded by the old query: --accept-changes"
    )


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


def _changed(places: ViewLayout, difference: str, next_step: str) -> ViewInvalid:
    return ViewInvalid(
        f"The view {places.name!r} is not the one that its state was built with: {difference}",
        where=str(places.root),
        next_step=next_step,
    )
