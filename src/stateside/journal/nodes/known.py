"""Known ids: which events the nodes' logs have already, as the owner of one node asks for them in its turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from stateside.errors import EventsGone, JournalCorrupt
from stateside.journal import content
from stateside.journal.index import hash_of
from stateside.journal.nodes.ids import NodeIds, Place
from stateside.journal.nodes.lasts import Logs
from stateside.journal.receipt import Stored


class KnownIds:
    """The index of ids of a node, made when it is asked for the first time: whoever compares no ids pays for none."""

    def __init__(self, directory: Path, log: str, logs: Logs, folder: Path) -> None:
        """`log` is the owner's own one, `logs` names all that there are, `folder` has them and the merged stream."""
        self._directory, self._log, self._logs, self._folder = directory, log, logs, folder
        self._ids: NodeIds | None = None
        self._followed = False

    def others_wrote(self) -> None:
        """The node has entities now that other nodes may have written."""
        self._followed = False

    def note(self, first: int, batch: pa.RecordBatch) -> None:
        """The owner stored this in its log, from this offset on."""
        if self._ids is not None:
            self._ids.note_later(self._log, first, batch)

    def places(self, ids: Sequence[str], end: int) -> list[Place | None]:
        """Where the events with these ids stand; None where there is none. The owner's log ends at `end`."""
        if self._ids is None:
            self._ids = NodeIds(self._directory, self._logs, self._folder)
        self._ids.catch_up()
        if not self._followed or self._ids.covers(self._log) != end:
            self._ids.follow()
            self._followed = True
        return self._ids.places(ids)

    def stored(self, entity: str, ids: Sequence[str], end: int) -> list[Stored]:
        """Those of the events that are stored. That one is of another entity is told by its name, where it is known."""
        found = zip(ids, self.places(ids, end), strict=True)
        return [self._stored(entity, id_, place) for id_, place in found if place is not None]

    def contents(self, log: str, offsets: Sequence[int]) -> dict[content.Place, content.Found]:
        """What the events at these offsets of a log say. Those that were trimmed are left out."""
        journal = self._logs()[log]

        def read(start: int, stop: int) -> Iterator[tuple[range, pa.RecordBatch]]:
            for first, batch in journal.batches(start, stop):
                yield range(first, first + batch.num_rows), batch

        return content.read_contents(read, log, offsets)

    def close(self) -> None:
        """Let the files go."""
        if self._ids is not None:
            self._ids.close()

    def _stored(self, entity: str, id_: str, place: Place) -> Stored:
        try:
            whose = entity if place.entity == hash_of(entity) else self._entity_at(place)
        except JournalCorrupt as error:
            return Stored.without_content(place.behind - 1, id_, error, place.log)
        return Stored(place.behind - 1, id_, whose, place.sequence, place.log)

    def _entity_at(self, place: Place) -> str | None:
        """Whose event stands there; None if it was trimmed."""
        with suppress(EventsGone):
            for _, batch in self._logs()[place.log].batches(place.behind - 1, place.behind):
                return str(batch.column("entity")[0].as_py())
        return None


def node_of(log: str) -> str:
    """The node whose log has this name."""
    return log.rpartition(".")[0]


def epoch_of(log: str) -> int:
    """The epoch whose log has this name; 0 for what is no log of a node."""
    epoch = log.rpartition(".")[2]
    return int(epoch) if epoch.isdecimal() else 0
