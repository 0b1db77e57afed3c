"""Where a journal on files and all that belongs to it lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stateside.errors import RequestInvalid
from stateside.journal import segment
from stateside.journal.queries import Queries, Views
from stateside.journal.stream import FileStream


@dataclass(frozen=True, slots=True)
class Place:
    """A journal's folder: segments and end mark, and beside them what is made of them."""

    directory: Path

    @classmethod
    def of(cls, directory: Path) -> Place:
        """The journal there; RequestInvalid if there is none."""
        if not segment.segment_offsets(directory):
            raise RequestInvalid(
                "There is no journal here",
                where=str(directory),
                next_step="Name the application's folder, or append a first event",
            )
        return cls(directory)

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
        stream = FileStream(self.directory)
        with Views(stream, self.views) as views:
            yield Queries(stream, views)
