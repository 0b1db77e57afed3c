"""A stream as it is stored: which journals hold its partitions, whether that is one log or the merge of many.

    a folder with      is                            its partitions
    segments           a journal on files            0: the folder itself
    nodes/, merged/    the merged stream of nodes    P: merged/P; none before its first merger

A folder with both is refused: the events of its own log are not in the merged stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stateside.errors import SettingInvalid
from stateside.journal import segment
from stateside.journal.merge.columns import without_sources
from stateside.journal.merge.coverage import sources_at
from stateside.journal.merge.partition import MERGED, Born, MergedPartition
from stateside.journal.nodes.log import NODES, node_logs
from stateside.journal.reader import Journal
from stateside.journal.segment import PARTITION, DurableEnd
from stateside.positions import Position


class PartitionEvents(Journal):
    """A partition of a merged stream, read as any journal."""

    shown = staticmethod(without_sources)


@dataclass(frozen=True, slots=True)
class StoredStream:
    """A stream's id (None before it was begun) and the journal of each partition, always in the same order."""

    folder: Path
    id: str | None
    journals: Mapping[str, Journal]
    is_merged: bool

    @classmethod
    def at(cls, folder: Path) -> StoredStream:
        """The stream in this folder, as it is now; SettingInvalid if it cannot be told which one is meant."""
        if not is_merged(folder):
            journal = Journal(folder)
            return cls(folder, journal.id(), {PARTITION: journal}, False)
        born = Born.read(folder / MERGED)
        if born is None:
            return cls(folder, None, {}, True)
        journals = {name: PartitionEvents(folder / MERGED / name) for name in born.names()}
        return cls(folder, born.id, journals, True)

    def ends(self) -> dict[str, DurableEnd]:
        """Each partition's end with its place in the files."""
        return {name: journal.durable_end() for name, journal in self.journals.items()}

    def end(self) -> Position:
        """The position after the last durable event of every partition."""
        return Position.of({name: end.offset for name, end in self.ends().items()})

    def begin(self) -> Position:
        """The position of the first events that are there."""
        return Position.of({name: journal.begin()[PARTITION] for name, journal in self.journals.items()})

    def sources(self, offsets: Mapping[str, int], marks: Mapping[str, DurableEnd] | None = None) -> Position:
        """Of a merged stream: a position in the nodes' logs, all events before which stand before these offsets.

        Where the logs are not merged there is none. `marks` are earlier ends, at or before the offsets: they spare the
        way there.
        """
        if not self.is_merged:
            return Position.start()
        partitions = {name: MergedPartition(journal.directory) for name, journal in self.journals.items()}
        return sources_at(partitions, offsets, marks or {})


def is_merged(folder: Path) -> bool:
    """Whether the stream in this folder is that of nodes; SettingInvalid if it has a log of its own as well."""
    merged = (folder / MERGED).is_dir() or (folder / NODES).is_dir()
    if merged and segment.segment_offsets(folder):
        raise SettingInvalid(
            "This folder has a log of its own, and nodes beside it, whose stream does not have that log's events",
            where=str(folder),
            next_step="Keep them in two folders, and name the one that is meant",
        )
    return merged


def acknowledged_end(folder: Path) -> Position:
    """Behind all that writers have been told is stored: the stream's end and, of nodes, the ends of their logs.

    A reader's position covers it once nothing waits: in the stream, or to be merged.
    """
    if not is_merged(folder):
        return Journal(folder).end()
    logs = {name: log.durable_end().offset for name, log in node_logs(folder).items()}
    return StoredStream.at(folder).end().joined(Position.of(logs))
