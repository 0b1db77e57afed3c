"""The catalogue of a view: how the rows of a state store become the view's rows.

The state holds aggregation buffers, not the declared columns. The runner derives from the query's plan which buffer
gives which column and writes it, as JSON, beside the checkpoint; readers need neither the user's code nor Spark.

Of a `transformWithState` the state holds variables, of which a view serves one (`kind` state-variable, its name in
`family`): see `variable_catalogue`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stateside.checkpoint.schema import StateSchema
from stateside.errors import CheckpointInvalid, ViewInvalid

VERSION = 1
AGGREGATION, STATE_VARIABLE = "aggregation", "state-variable"  # the kinds of state that a view may serve


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """A column of a view: its name and Spark type, its place in the state's key or value row, and what it is made of.

    Spark itself would let a `count` go on where a `sum` of the same type left off; `expression` tells them apart.
    """

    name: str
    type: str
    index: int
    expression: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A view as it is served: the key's columns in the order they are asked by, then the values' columns."""

    application: str
    view: str
    operator: int
    key: tuple[ViewColumn, ...]
    columns: tuple[ViewColumn, ...]
    kind: str = AGGREGATION
    family: str | None = None

    def as_json(self) -> bytes:
        """The file's content."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=2).encode()

    @classmethod
    def parse(cls, content: bytes, where: str) -> Catalogue:
        """The catalogue in a file's content."""
        try:
            document: dict[str, Any] = json.loads(content)
            if document.pop("version") != VERSION:
                raise ValueError("another version")
            key, columns = (tuple(ViewColumn(**column) for column in document.pop(part)) for part in ("key", "columns"))
            return cls(**document, key=key, columns=columns)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointInvalid(
                f"The catalogue cannot be read: {error}",
                where=where,
                next_step="Start the view again: run writes it anew",
            ) from error

    @classmethod
    def load(cls, path: Path) -> Catalogue:
        """The catalogue in a file."""
        return cls.parse(path.read_bytes(), str(path))

    def check(self, schema: StateSchema) -> None:
        """Refuse a state that is not the one this catalogue was derived for, rather than serve it wrongly."""
        for part, declared, stored in (("key", self.key, schema.key), ("value", self.columns, schema.value)):
            for column in declared:
                found = stored[column.index] if column.index < len(stored) else None
                if found is None or found.type != column.type or (part == "key" and found.name != column.name):
                    raise ViewInvalid(
                        f"The view {self.view!r} does not fit its state: {part} column {column.index} should be "
                        f"{column.name} {column.type}, the state has {found and f'{found.name} {found.type}'}",
                        next_step="The query was changed on an old checkpoint: start it on a new folder",
                    )
