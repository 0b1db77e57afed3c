"""The files of a journal, and reads that retention does not disturb.

A drop writes the journal's base and deletes segments, the oldest first (`retention`). So a drop came in between if the
base or the first segment has changed; then `undisturbed` reads again, so that dropped events are not reported as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stateside.core.errors import EventsGone, JournalCorrupt, RequestInvalid
from stateside.journal import topic_note
from stateside.journal.backends.files import retention_base, segment
from stateside.journal.backends.files.file_journal import FileJournal
from stateside.journal.backends.files.frames import Shown
from stateside.journal.backends.files.segment import PARTITION
from stateside.journal.backends.nodes import MergedJournal
from stateside.journal.backends.nodes.log import node_logs
from stateside.journal.backends.nodes.partition import MERGED, without_sources
from stateside.journal.columns import conformed
from stateside.journal.location import is_merged
from stateside.journal.queries import Queries, QueryViews


@dataclass(frozen=True, slots=True)
class JournalFiles:
    """A journal's folder: segments and end mark, or nodes and the merged stream; and everything derived from them.

    For one partition of a merged stream, `partition` is its name, and `shown` converts its stored events for readers.
    """

    directory: Path
    shown: Shown = conformed
    partition: str = PARTITION

    @classmethod
    def of(cls, directory: Path) -> JournalFiles:
        """The journal in a folder; RequestInvalid if there is none, or if its nodes' logs were never merged."""
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
        """Whether nodes write this journal: then readers read the merged stream.

        SettingInvalid if the folder has a log of its own as well.
        """
        return is_merged(self.directory)

    def stream(self) -> FileJournal | MergedJournal:
        """All events."""
        return (
            MergedJournal(self.directory) if self.has_nodes else FileJournal(self.directory, self.shown, self.partition)
        )

    def partitions(self) -> dict[str, JournalFiles]:
        """The journals of the stream: the journal itself, or one for each partition of the merged stream."""
        if not self.has_nodes:
            return {self.partition: self}
        names = self.stream().partitions()
        return {name: JournalFiles(self.directory / MERGED / name, without_sources, name) for name in names}

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
        """Torn frames of crashes, set aside by recovery."""
        return sorted(self.directory.glob(f"*{segment.SUFFIX}.torn-*"))

    @contextmanager
    def queries(self) -> Iterator[Queries]:
        """The journal's queries, with its views if there are any."""
        stream = self.stream()
        with QueryViews(stream, self.views) as views:
            yield Queries(stream, views)


Result = TypeVar("Result")


def anything(found: object) -> bool:
    """Accept any result."""
    return True


def undisturbed(
    place: JournalFiles, read: Callable[[], Result], is_right: Callable[[Result], bool] = anything
) -> Result:
    """The result of `read`; repeated if it fails or is not right, and a drop came in between."""
    while True:
        before = _beginnings(place)
        try:
            found = read()
        except (FileNotFoundError, EventsGone):
            if _beginnings(place) == before:
                raise
        else:
            if is_right(found) or _beginnings(place) == before:
                return found


def _beginnings(place: JournalFiles) -> list[tuple[int | None, int | None]]:
    """Where each journal of the folder begins: by its segments, and by its base."""
    logs = node_logs(place.directory).values() if place.has_nodes else ()
    directories = [*(part.directory for part in place.partitions().values()), *(log.directory for log in logs)]
    return [(_first(directory), _base(directory)) for directory in directories]


def _first(directory: Path) -> int | None:
    return next(iter(segment.segment_offsets(directory)), None)


def _base(directory: Path) -> int | None:
    """None if unreadable, which a reader of the journal reports."""
    with suppress(JournalCorrupt):
        return retention_base.offset(directory)
    return None
