"""What there is to ask: the relations that a holder reaches, with their columns as SQL has them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from stateside.errors import AccessDenied, StatesideError
from stateside.serving.access.holder import Holder
from stateside.serving.reading.views import Views
from stateside.serving.sql.columns import RollupColumns
from stateside.serving.sql.engine import open_engine
from stateside.serving.sql.execution import Folder, view_columns
from stateside.serving.sql.relations import Relation


def listed(folder: Folder, views: Views, holder: Holder) -> list[dict[str, Any]]:
    """The relations, by name; one whose view has no batch yet has no columns."""
    engine = open_engine()
    try:
        found = []
        for relation in sorted(folder.relations.all().values(), key=str):
            schema = _schema(folder, views, relation)
            if _reached(holder, relation, schema):
                shown = [] if schema is None else _columns(engine, schema, _hidden(folder, relation, holder))
                found.append({"name": str(relation), "view": relation.view, "kind": _kind(relation), "columns": shown})
        return found
    finally:
        engine.close()


def _schema(folder: Folder, views: Views, relation: Relation) -> pa.Schema | None:
    try:
        if relation.table is not None:
            return folder.archive.schema(relation.table, relation.view)
        catalogue = views.get(relation.view).shape.catalogue
        if relation.by is not None:
            return RollupColumns(catalogue, relation.by).schema
        return view_columns(folder.layout, catalogue).schema
    except StatesideError:  # not ready, or not servable: GET /v1/views tells why
        return None


def _reached(holder: Holder, relation: Relation, schema: pa.Schema | None) -> bool:
    names = relation.by if relation.by is not None else holder.where if schema is None else schema.names
    try:
        holder.rows_of(relation.view, names)
    except AccessDenied:
        return False
    return True


def _kind(relation: Relation) -> str:
    return "archive" if relation.table is not None else "view" if relation.by is None else "rollup"


def _hidden(folder: Folder, relation: Relation, holder: Holder) -> frozenset[str]:
    return frozenset() if relation.table is None else folder.archive.hidden(relation.table, relation.view, holder)


def _columns(engine: Any, schema: pa.Schema, hidden: frozenset[str]) -> list[dict[str, str]]:
    types = engine.from_arrow(schema.empty_table()).types
    named = zip(schema.names, types, strict=True)
    return [{"name": name, "type": str(type_)} for name, type_ in named if name not in hidden]
