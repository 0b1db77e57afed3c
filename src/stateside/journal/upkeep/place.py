"""Where a journal on files and all that belongs to it lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stateside.errors import RequestInvalid
from stateside.journal import segment, topic_note
from stateside.journal.columns import conformed
from stateside.journal.frames import Shown
from stateside.journal.merge import MergedStream
from stateside.journal.merge.columns import without_sources
from stateside.journal.merge.partition import MERGED
from stateside.journal.queries import Queries, Views
from stateside.journal.segment import PARTITION
from stateside.journal.stored import is_merged
from stateside.journal.stream import FileStream


@dataclass(frozen=True, slots=True)
class Place:
    """A journal's folder: segments and end mark, or nodes and the merged stream; and what is made of them.

    Of one partition of a merged stream `partition` is its name, and `shown` how its stored events are shown to readers.
    """

    directory: Path
    shown: Shown = conformed
    partition: str = PARTITION

    @classmethod
    def of(cls, directory: Path) -> Place:
        """The journal there; RequestInvalid if there is none, or one that no merger has made a stream of yet."""
        place = cls(directory)
        if place.has_nodes and not place.stream().partitions():
            raise RequestInvalid(
                "This journal is written by nodes, and their logs were never merged",
                where=str(directory),
                next_step="Start `stateside journal merge` with the same folder, then ask again",
            )
        if (directory / topic_note.NAME).exists():
            raise RequestInvalid(
                "The journal of this folder is a topic on Kafka, and this looks after journals on files",
                where=str(directory / topic_note.NAME),
                next_step="`stateside journal stat`, `read`, `ids`, `tags`, `views`, `export` and `verify` look into "
                "the topic; more does Kafka",
            )
        if not place.has_nodes and not segment.segment_offsets(directory):
            raise RequestInvalid(
                "There is no journal here",
                where=str(directory),
                next_step="Name the application's folder, or append a first event",
            )
        return place

    @property
    def has_nodes(self) -> bool:
        """Whether nodes write this journal: then the merged stream is what is read.

        SettingInvalid if there is a log of the folder's own as well.
        """
        return is_merged(self.directory)

    def stream(self) -> FileStream | MergedStream:
        """All events."""
        return (
            MergedStream(self.directory) if self.has_nodes else FileStream(self.directory, self.shown, self.partition)
        )

    def partitions(self) -> dict[str, Place]:
        """The journals that its stream consists of: itself, or one for each partition of the merged stream."""
        if not self.has_nodes:
            return {self.partition: self}
        names = self.stream().partitions()
        return {name: Place(self.directory / MERGED / name, without_sources, name) for name in names}

    @property
    def views(self) -> Path:
        """The views of queries."""
        return self.directory / "views"

    @property
    def ids(self) -> Path:
        """The index of the events' ids."""
        return self.directory / "ids"

    @property
    def sequences(self) -> Path:
        """The index of the entities' last sequences."""
        return self.directory / "sequences"

    def torn(self) -> list[Path]:
        """What crashes left and recovery set aside."""
        return sorted(self.directory.glob(f"*{segment.SUFFIX}.torn-*"))

    @contextmanager
    def queries(self) -> Iterator[Queries]:
        """The journal's queries, with the help of its views as far as there are any."""
        stream = self.stream()
        with Views(stream, self.views) as views:
            yield Queries(stream, views)
