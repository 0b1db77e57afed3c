"""Test helpers for applications: a folder with a journal, a run up to a position, a query of a view, injected crashes.

    def test_spending_adds_up(spark, tmp_path):
        folder = Layout(tmp_path)
        receipt = append(folder, [Event("1", "emma", "order", 0, {"amount_micros": 5}), crash_marker(), …])
        with pytest.raises(PipelineFailed):
            run_to(app, folder, spark, receipt)        # the marker crashes the first attempt to read its batch
        run_to(app, folder, spark, receipt)
        assert rows(folder, "spending", "emma") == [{"customer": "emma", "total": 5}]

One session serves many tests: `with session(folder) as spark:`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from stateside.core.errors import OperatingError
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.journal import Event, Journal, open_journal
from stateside.journal.predicates import ANY, Conditions
from stateside.pipeline.journal_source import JournalSource, JournalStreamReader
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sources import EVENTS_PER_BATCH_MAX

if TYPE_CHECKING:  # Spark's Python workers import this module, for `CrashingSource`
    from pyspark.sql import SparkSession

    from stateside.pipeline.app import App
    from stateside.pipeline.sinks.sink import BatchId, Sink
    from stateside.serving.rows.view_readers import Floor, ViewAnswer, ViewReader

CRASH_TYPE = "stateside.testing.crash"
_numbers = count(1)


class Crash(OperatingError, code="testing-crash"):
    """Raised by crash markers and crashing sinks."""


@contextmanager
def session(scratch: Path) -> Iterator[SparkSession]:
    """A Spark session as the runner starts one, stopped at the end. Starting takes seconds: share one."""
    from stateside.pipeline.session import start_session, stop_session

    started = start_session("tests", scratch)
    try:
        yield started
    finally:
        stop_session(started)


@contextmanager
def temporary_journal(events: Sequence[Event] = ()) -> Iterator[Journal]:
    """A journal with the given events, deleted at the end."""
    with TemporaryDirectory(prefix="stateside-test-") as folder:
        journal = open_journal(Path(folder))
        with journal.writer() as writer:
            writer.append(events)
        yield journal


def append(layout: Layout, events: Sequence[Event]) -> Position:
    """Append events to an application's journal; returns the receipt."""
    with open_journal(layout.journal).writer() as writer:
        return writer.append(events)


def crash_marker(time_us: int = 0) -> Event:
    """An event whose batch fails on the first read. A crash marker never reaches the view."""
    return Event(f"crash-{next(_numbers)}", "crash", CRASH_TYPE, time_us, {})


def run_to(
    app: App,
    layout: Layout,
    session: SparkSession,
    position: Position | None = None,
    *,
    events_per_batch: int = EVENTS_PER_BATCH_MAX,
) -> None:
    """Run the application up to a position of the journal (by default its end), then stop the application.

    Crash markers among the events take effect. PipelineFailed if a view fails.
    """
    from stateside.pipeline.runner import Runner

    session.dataSource.register(CrashingSource)
    journal = open_journal(layout.journal)
    stop_at = position or journal.in_stamps(journal.end())
    settings = RunSettings(events_per_batch_max=events_per_batch, stop_at=stop_at, restarts_max=0, hold_s_max=0)
    with Runner(app, layout, settings, session=session) as runner:
        runner.run_to_end()


def answer(layout: Layout, view: str, *key: str) -> ViewAnswer:
    """Follow the view's checkpoint to its newest batch, then answer as a server would."""
    return _ask(layout, view, lambda reader, floor: reader.rows(reader.shape.parse_key(key), floor))


def rows(layout: Layout, view: str, *key: str) -> list[dict[str, Any]]:
    """The rows of a view whose key begins with the given parts, without their stamp."""
    return answer(layout, view, *key).rows


def rollup(layout: Layout, view: str, columns: Sequence[str], *key: str) -> list[dict[str, Any]]:
    """The rows of a view's rollup by `columns` whose key begins with the given parts, without their stamp."""
    return _ask(layout, view, lambda reader, floor: reader.rollup(columns, key, floor)).rows


def _ask(
    layout: Layout, view: str, question: Callable[[ViewReader, Floor], Coroutine[Any, Any, ViewAnswer]]
) -> ViewAnswer:
    from stateside.replica.tail import Tail
    from stateside.serving.rows.view_readers import Floor, ViewReader

    tail = Tail(layout.view(view))
    tail.step()
    tail.close()
    reader = ViewReader(layout.view(view))
    try:
        return asyncio.run(question(reader, Floor(wait_ms=0)))
    finally:
        reader.close()


class CrashingSink:
    """A sink that fails once, just before or just after storing the first non-empty batch."""

    def __init__(self, sink: Sink, when: Literal["before", "after"]) -> None:
        self._sink, self._when, self._crashed = sink, when, False

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        crash = bool(rows.num_rows) and not self._crashed
        self._crashed = self._crashed or crash
        if crash and self._when == "before":
            raise Crash("A test crashes here, before the sink has stored the batch")
        self._sink.write(rows, batch)
        if crash:
            raise Crash("A test crashes here, after the sink has stored the batch")


class _CrashingReader(JournalStreamReader):
    """Reads the journal: fails the first task that reads a crash marker, and drops markers afterwards."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task, without markers."""
        for batch in super().read(partition):
            marked = pc.equal(batch.column("type"), CRASH_TYPE)
            for marker in batch.filter(marked).column("id").to_pylist():
                self._crash_once(marker)
            yield batch.filter(pc.invert(marked))

    def _wanted(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Markers are read whatever types and tags the query selects."""
        wanted = super()._wanted(batch)
        return None if wanted is None else pc.or_(wanted, pc.equal(batch.column("type"), CRASH_TYPE))

    def _ruling(self) -> Conditions:
        """A marker may be in any segment."""
        return ANY

    def _crash_once(self, marker: str) -> None:
        remembered = self._folder / f"{marker}.crashed"
        if not remembered.exists():
            remembered.touch()
            raise OperatingError(f"A test crashes here, at the marker {marker!r}")


class CrashingSource(JournalSource):
    """The journal source in which crash markers take effect, registered in its place. `run_to` registers it."""

    def streamReader(self, schema: StructType) -> JournalStreamReader:  # noqa: N802
        return _CrashingReader(schema, self.options)
