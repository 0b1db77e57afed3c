"""The weaker guarantees, seen from the sink."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stateside.core.errors import SinkAway
from stateside.core.layout import Layout
from stateside.pipeline.sinks.sink import BatchId, with_guarantee

ROWS = pa.table({"a": [1]})


class Notebook:
    """A sink that keeps the names of what it is given, and may be away."""

    def __init__(self, away: int = 0) -> None:
        self.given: list[BatchId] = []
        self.away = away

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        self.given.append(batch)
        if self.away:
            self.away -= 1
            raise SinkAway("not here")


def test_exactly_once_is_the_sink_as_it_is(layout: Layout) -> None:
    notebook = Notebook()
    assert with_guarantee(notebook, "exactly-once", layout.view("v")) is notebook


def test_at_least_once_gives_every_attempt_a_name_of_its_own_and_the_batch_its_number(layout: Layout) -> None:
    notebook = Notebook()
    for _ in range(2):
        sink = with_guarantee(notebook, "at-least-once", layout.view("v"))
        for batch in (3, 3, 4):
            sink.write(ROWS, BatchId("query", batch))
    assert [batch.batch for batch in notebook.given] == [3, 3, 4] * 2
    assert len({batch.query for batch in notebook.given}) == 6
    assert all(batch.query.startswith("query~") for batch in notebook.given)


def test_at_most_once_gives_a_batch_once_even_after_a_restart(layout: Layout) -> None:
    notebook = Notebook()
    for _ in range(2):
        sink = with_guarantee(notebook, "at-most-once", layout.view("v"))
        for batch in (3, 3, 4, 2):
            sink.write(ROWS, BatchId("query", batch))
    assert notebook.given == [BatchId("query", 3), BatchId("query", 4)]


def test_at_most_once_begins_anew_with_a_new_query(layout: Layout) -> None:
    notebook = Notebook()
    sink = with_guarantee(notebook, "at-most-once", layout.view("v"))
    for query in ("one", "other"):
        sink.write(ROWS, BatchId(query, 0))
    assert notebook.given == [BatchId("one", 0), BatchId("other", 0)]


def test_at_most_once_does_not_try_a_sink_again_that_was_away_and_says_so(
    layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    """What a sink that was away has stored nobody knows: a second try might double it."""
    notebook = Notebook(away=1)
    sink = with_guarantee(notebook, "at-most-once", layout.view("v"))
    with pytest.raises(SinkAway):
        sink.write(ROWS, BatchId("query", 0))
    sink.write(ROWS, BatchId("query", 0))
    assert len(notebook.given) == 1
    assert "at-most-once skips it" in caplog.text
