"""A range of the journal as a DataFrame that is no stream, with conditions that Spark hands down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from stateside.errors import PositionInvalid
from stateside.journal.conditions import EVER, Span
from stateside.pipeline.event_reader import EVENTS_PER_TASK_MIN, EventReader, check_there, check_within
from stateside.pipeline.pushed import narrowed, offsets_of
from stateside.positions import Position

TASKS_MIN = 8  # where there are enough events for them
EVENTS_PER_TASK_MAX = 1_000_000


class JournalBatchReader(EventReader, DataSourceReader):
    """Reads from `start` (the very first event) to `end` (all that is durable now). Made anew for each execution."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        super().__init__(schema, options)
        self._end = options.get("end")
        self._offsets: Span = EVER

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Read no more than these need. Spark looks at the rows again: what a comparison means is its affair."""
        for each in filters:
            self._conditions = narrowed(self._conditions, each)
            self._offsets = self._offsets.cut(offsets_of(each))
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """The range in tasks."""
        stored = self._stored()
        first, last = self._first(stored), stored.end() if self._end is None else Position.parse(self._end)
        check_within(stored, first, "start")
        check_within(stored, last, "end")
        if not last.covers(first):
            raise PositionInvalid(
                f"The start {first} does not lie before the end {last}", next_step="Exchange them, or leave one out"
            )
        check_there(stored, first)
        ranges = {name: self._cut(first[name], last[name]) for name in stored.journals}
        events = sum(stop - start for start, stop in ranges.values())
        most = max(TASKS_MIN, -(-events // EVENTS_PER_TASK_MAX))
        count = min(most, max(1, events // EVENTS_PER_TASK_MIN))
        return list(self._tasks(stored, ranges, -(-events // count), lambda partition, offset: None))

    def _cut(self, start: int, stop: int) -> tuple[int, int]:
        """What a condition on the offset leaves of a range."""
        start, stop = max(start, self._offsets.first), min(stop, self._offsets.last + 1)
        return start, max(start, stop)
