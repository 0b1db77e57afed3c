"""The life of a stream reader that is written in Python."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row

from .harness import Lab
from .tape import Tape, tape_source

pytestmark = pytest.mark.spark


@pytest.fixture
def tape(lab: Lab, tmp_path: Path) -> Tape:
    lab.spark.dataSource.register(tape_source())
    return Tape(tmp_path / "tape", {"p0": 5, "p1": 3})


def test_the_offset_of_a_python_source_stands_in_the_offsets_file_as_python_wrote_it(lab: Lab, tape: Tape) -> None:
    """The checkpoint reader turns this line into a position. It is `json.dumps` with its defaults: keys in the
    order of the dict, a space after colon and comma.
    """
    lab.run(_stream(lab, tape))

    assert [lab.checkpoint.offsets(batch).sources for batch in lab.checkpoint.committed()] == [
        ['{"p0": 3, "p1": 0}'],
        ['{"p0": 5, "p1": 1}'],
        ['{"p0": 5, "p1": 3}'],
    ]


def test_a_read_limit_reaches_every_call_of_latest_offset_and_bounds_the_batches(lab: Lab, tape: Tape) -> None:
    """The journal's source bounds its batches by answering with a nearer offset; Spark cuts nothing itself. A
    batch is read once, in ranges that follow each other without a gap.
    """
    emitted = lab.run(_stream(lab, tape))

    assert {batch: len(rows) for batch, rows in emitted.items()} == {0: 3, 1: 3, 2: 2}
    assert tape.calls("latestOffset", "partitions") == [
        ("latestOffset", [{"p0": 0, "p1": 0}, "ReadMaxRows", {"max_rows": 3}]),
        ("partitions", [{"p0": 0, "p1": 0}, {"p0": 3, "p1": 0}]),
        ("latestOffset", [{"p0": 3, "p1": 0}, "ReadMaxRows", {"max_rows": 3}]),
        ("partitions", [{"p0": 3, "p1": 0}, {"p0": 5, "p1": 1}]),
        ("latestOffset", [{"p0": 5, "p1": 1}, "ReadMaxRows", {"max_rows": 3}]),
        ("partitions", [{"p0": 5, "p1": 1}, {"p0": 5, "p1": 3}]),
        ("latestOffset", [{"p0": 5, "p1": 3}, "ReadMaxRows", {"max_rows": 3}]),
    ]


def test_available_now_asks_the_source_for_its_end_once_and_runs_to_it(lab: Lab, tape: Tape) -> None:
    """`run --once` and the tests end because the source remembers the end that it had at the start; rows that
    come in meanwhile are for the next run.
    """

    def sink(frame: DataFrame, _batch: int) -> None:
        read.extend(frame.collect())
        tape.extend({"p0": 6, "p1": 3})

    read: list[Row] = []
    lab.run_into(sink, _stream(lab, tape))

    assert len(read) == 8
    assert tape.calls("prepare") == [("prepare", [])]
    assert lab.run(_stream(lab, tape)) == {3: [Row(partition="p0", number=5)]}


def test_a_restarted_python_source_gets_the_offset_of_the_checkpoint(lab: Lab, tape: Tape) -> None:
    """The source keeps no position of its own: a new process is told where the last batch ended."""
    lab.run(_stream(lab, tape))
    tape.extend({"p0": 5, "p1": 4})
    tape.calls()

    emitted = lab.run(_stream(lab, tape))

    assert emitted == {3: [Row(partition="p1", number=3)]}
    first_question, *_ = tape.calls("latestOffset", "partitions")
    assert first_question == ("latestOffset", [{"p0": 5, "p1": 3}, "ReadMaxRows", {"max_rows": 3}])


def test_a_retried_batch_is_read_from_the_offsets_file_without_asking_for_the_latest_offset(
    lab: Lab, tape: Tape
) -> None:
    """What a batch computes depends on its planned range alone: the journal must serve any range that it ever
    named, and may not rely on having been asked for it in this process.
    """
    with pytest.raises(StreamingQueryException, match="crash"):
        lab.run_into(_crash, _stream(lab, tape))
    tape.extend({"p0": 9, "p1": 9})
    tape.calls()

    emitted = lab.run(_stream(lab, tape))

    assert emitted[0] == [Row(partition="p0", number=number) for number in range(3)]
    first_question, *_ = tape.calls("latestOffset", "partitions")
    assert first_question == ("partitions", [{"p0": 0, "p1": 0}, {"p0": 3, "p1": 0}])


def test_a_source_is_told_of_a_committed_batch_only_when_the_next_one_was_planned(lab: Lab, tape: Tape) -> None:
    """`commit` of the last batch may never come, so the journal may use it to delete old segments, not to know
    how far the pipeline got; that is in the checkpoint.
    """
    lab.run(_stream(lab, tape))

    assert tape.calls("commit") == [("commit", [{"p0": 3, "p1": 0}]), ("commit", [{"p0": 5, "p1": 1}])]


def test_offsets_are_compared_as_text_so_that_another_order_of_keys_is_new_data(lab: Lab, tape: Tape) -> None:
    """The journal's source must write its partitions in one order. An unsorted dict starts batches without
    rows, and with `availableNow` a query that never ends.
    """
    lab.run(_stream(lab, tape))

    assert lab.run(_stream(lab, tape)) == {}
    assert lab.run(_stream(lab, tape, flips=2)) == {3: [], 4: []}
    assert lab.checkpoint.offsets(3).sources == ['{"p1": 3, "p0": 5}']


def _stream(lab: Lab, tape: Tape, flips: int = 0) -> DataFrame:
    return lab.spark.readStream.format("tape").options(path=str(tape.folder), max_rows=3, flips=flips).load()


def _crash(frame: DataFrame, _batch: int) -> None:
    frame.collect()
    raise RuntimeError("crash")
