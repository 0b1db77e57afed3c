"""The declared fields of a folder's views, kept beside the journal's folder, so that an append can check payloads.

    fields.json := {"views": {VIEW: {"fields": DDL, "schema": base64, "types": […], "tags": […]}}}

The runner writes the file at each start; `schema` is the Arrow schema of the DDL, which only Spark can parse. Before
the first run there is no file, and an append checks nothing. An event must fit the fields of every view that reads it:
all events where a view names neither types nor tags, else those of its types with any of its tags.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from stateside.errors import EventRefused, StateError
from stateside.journal.event import Event, json_bytes
from stateside.journal.payload import fitted, mismatch
from stateside.storage import write_atomically


@dataclass(frozen=True, slots=True)
class ViewFields:
    """The payload's fields that one view reads, and of which events."""

    fields: str
    schema: pa.Schema
    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def reads(self, event: Event) -> bool:
        """Whether the view reads this event, and a JSON payload of it."""
        of_type = not self.types or event.type in self.types
        tagged = not self.tags or any(tag in self.tags for tag in event.tags)
        return of_type and tagged and not isinstance(event.payload, bytes)

    def as_dict(self) -> dict[str, object]:
        """As the file has it."""
        schema = b64encode(self.schema.serialize().to_pybytes()).decode()
        return {"fields": self.fields, "schema": schema, "types": list(self.types), "tags": list(self.tags)}

    @classmethod
    def of(cls, given: Mapping[str, str | list[str]]) -> ViewFields:
        """From the file."""
        schema = pa.ipc.read_schema(pa.py_buffer(b64decode(str(given["schema"]))))
        return cls(str(given["fields"]), schema, tuple(given["types"]), tuple(given["tags"]))


def keep_fields(path: Path, views: Mapping[str, ViewFields]) -> None:
    """Write the file. Views without fields have nothing to check."""
    content = {"views": {name: view.as_dict() for name, view in views.items() if len(view.schema)}}
    write_atomically(path, json.dumps(content, indent=1).encode())


class DeclaredFields:
    """Checks payloads against a folder's file, which is read again when it changes. For one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[int, int] | None = None
        self._rules: tuple[ViewFields, ...] = ()

    def faults(self, events: Sequence[Event]) -> dict[int, str]:
        """By their places, the events that do not fit the declared fields, with the reason; each must be an event."""
        found: dict[int, str] = {}
        for rule in self._current():
            places = [place for place, event in enumerate(events) if place not in found and rule.reads(event)]
            texts = [json_bytes(events[place].payload).decode() for place in places]
            _, misfits = fitted(pa.array(texts, pa.string()), rule.schema)
            found.update((places[row], mismatch(texts[row], rule.schema)) for row in misfits)
        return found

    def check(self, events: Sequence[Event], what: str = "batch") -> None:
        """EventRefused, naming the first event that does not fit, and its field."""
        faults = self.faults(events)
        if faults:
            place = min(faults)
            raise EventRefused(
                f"Event {place} of the {what}, {events[place].id!r:.80}, was refused: {faults[place]}",
                next_step=f"Nothing of the {what} was stored; mend the event and send all of them again",
            )

    def _current(self) -> Iterable[ViewFields]:
        try:
            about = self._path.stat()
        except FileNotFoundError:
            return ()
        version = about.st_mtime_ns, about.st_ino
        if version != self._read:
            self._rules, self._read = _load(self._path), version
        return self._rules


def _load(path: Path) -> tuple[ViewFields, ...]:
    try:
        views = json.loads(path.read_bytes())["views"].values()
        rules = [ViewFields.of(view) for view in views]
    except (ValueError, LookupError, TypeError, AttributeError, pa.ArrowException) as error:
        raise StateError(
            f"The declared fields cannot be read: {error!r}",
            where=str(path),
            next_step="Delete the file: the next run of the application writes it again",
        ) from error
    distinct: list[ViewFields] = []
    for rule in rules:
        if rule not in distinct:
            distinct.append(rule)
    return tuple(distinct)
