"""Positions of sources' offsets: of every kind of source, of several in one query, and of none that is understood."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from stateside.core.errors import PositionInvalid
from stateside.core.positions import OFFSET_MAX, Position
from stateside.core.storage import Storage
from stateside.journal import Event, JournalWriter
from stateside.spark_state.batch_log import Checkpoint, read_journals, read_named_position, read_position

JOURNAL = '{"journal":"6f7e","0":%d}'


@pytest.mark.parametrize(
    ("lines", "position"),
    [
        ([JOURNAL % 7], "0:7"),
        (['{"0":7}'], "0:7"),
        (['{"calls":{"1":9,"0":12}}'], "calls-0:12,calls-1:9"),
        (['{"calls":{"0":12},"sms.de":{"0":3}}'], "calls-0:12,sms.de-0:3"),
        (['{"logOffset":3}'], "files:4"),
        (['{"logOffset":-1}'], "start"),
        (["5"], "offset:5"),
        (["-1"], "start"),
        (['{"offset":20,"timestamp":1000}'], "offset:20"),
        (['{"activeSourceName":"old","allSourceNames":["old","new"],"completedSourceNames":[]}'], "start"),
        (["-"], "start"),
        (["true"], "start"),
        (["null"], "start"),
        (['"2026-01-01"'], "start"),
        (["[1]"], "start"),
        (["{}"], "start"),
        (['{"sourceVersion":1,"reservoirId":"a","index":-1}'], "start"),
        (['{"calls":{"0":12},"version":3}'], "start"),
        (['{"calls":{"0":"12"}}'], "start"),
        (['{"no partition":3}'], "start"),
        (['{"calls":{"0":12}}', '{"logOffset":0}'], "s0.calls-0:12,s1.files:1"),
        (['{"calls":{"0":12}}', '{"calls":{"0":7}}'], "s0.calls-0:12,s1.calls-0:7"),
        (['{"calls":{"0":12}}', "-"], "s0.calls-0:12"),
        (['{"calls":{"0":12}}', '{"index":-1}'], "s0.calls-0:12"),
        ([json.dumps({"c" * 249: {"1000": 12}}), "5"], "s1.offset:5"),
        ([JOURNAL % 7, '{"calls":{"0":12}}'], "0:7,s1.calls-0:12"),
        ([JOURNAL % 7, JOURNAL % 5], "0:5"),
        ([JOURNAL % 7, '{"0":0}'], "start"),
        ([JOURNAL % 7, '{"journal":"other","0":5}'], "s0.0:7,s1.0:5"),
    ],
)
def test_an_offset_is_a_position_or_promises_nothing(lines: list[str], position: str) -> None:
    assert str(read_position(lines)) == position


@pytest.mark.parametrize(("line", "error"), [("{", ValueError), ("", ValueError), (JOURNAL % -5, PositionInvalid)])
def test_a_damaged_offset_is_told(line: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_position([line])


@pytest.mark.parametrize(
    ("lines", "position"),
    [
        (['0:{"calls":{"0":12}}'], "calls-0:12"),
        (['orders:{"calls":{"0":12}}'], "calls-0:12"),
        (['0:{"calls":{"0":12}}', "1:5"], "s0.calls-0:12,s1.offset:5"),
        (["1:5", '0:{"calls":{"0":12}}'], "s0.calls-0:12,s1.offset:5"),
        (['orders:{"calls":{"0":12}}', "pay:-"], "orders.calls-0:12"),
        ([f"a:{JOURNAL % 7}", '0:{"calls":{"0":12}}'], "0:7,s0.calls-0:12"),
        (["no partition:3", "1:5"], "s1.offset:5"),
    ],
)
def test_an_offset_of_a_source_with_a_name_is_a_position_too(lines: list[str], position: str) -> None:
    assert str(read_named_position(lines)) == position


def test_a_line_without_a_name_is_damaged() -> None:
    with pytest.raises(ValueError, match="no name"):
        read_named_position(["5"])


partitions = st.dictionaries(st.sampled_from(["0", "1"]), st.integers(1, OFFSET_MAX), min_size=1)
offsets = st.dictionaries(st.sampled_from(["calls", "sms"]), partitions, min_size=1)


@given(st.lists(offsets, min_size=1, max_size=3))
def test_no_two_partitions_of_a_query_are_taken_for_one(sources: list[dict[str, dict[str, int]]]) -> None:
    position = read_position([json.dumps(source) for source in sources])
    assert len(position.parts) == sum(len(part) for source in sources for part in source.values())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(json_values.filter(lambda value: not (isinstance(value, dict) and "journal" in value)), max_size=3))
def test_whatever_a_foreign_source_writes_can_be_read(values: list[object]) -> None:
    read_position([json.dumps(value) for value in values])


@pytest.mark.spark
class TestSparksOwnFiles:
    """The offsets that real queries write."""

    def run(self, frame: DataFrame, tmp_path: Path) -> Position:
        checkpoint = tmp_path / "checkpoint"
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(60)
        log = Checkpoint(Storage.at(checkpoint))
        return log.plan(log.commits()[-1]).position

    def run_endless(self, frame: DataFrame, batches: int, tmp_path: Path) -> list[Position]:
        checkpoint = tmp_path / "checkpoint"
        query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        log = Checkpoint(Storage.at(checkpoint))
        try:
            while len(log.commits()) < batches:
                assert query.isActive
                time.sleep(0.2)
        finally:
            query.stop()
        return [log.plan(batch).position for batch in log.commits()]

    @pytest.fixture
    def files(self, spark: SparkSession, tmp_path: Path) -> Callable[[], DataFrame]:
        folder = tmp_path / "incoming"
        folder.mkdir()
        for name in ("a", "b"):
            (folder / f"{name}.json").write_text('{"n":1}\n')
        reader = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1)
        return lambda: reader.json(str(folder))

    @pytest.fixture
    def journal(self, spark: SparkSession, tmp_path: Path) -> Callable[..., DataFrame]:
        with JournalWriter(tmp_path / "journal") as writer:
            writer.append([Event(str(n), "emma", "order", 0, {}) for n in range(3)])
        return lambda: spark.readStream.format("stateside-journal").option("path", str(tmp_path / "journal")).load()

    def test_files_count_their_batches(self, files: Callable[[], DataFrame], tmp_path: Path) -> None:
        assert str(self.run(files(), tmp_path)) == "files:2"

    def test_a_journal_beside_files_keeps_its_name(
        self, files: Callable[[], DataFrame], journal: Callable[[], DataFrame], tmp_path: Path
    ) -> None:
        both = files().selectExpr("n").union(journal().selectExpr("offset as n"))
        assert str(self.run(both, tmp_path)) == "0:3,s0.files:2"

    def test_a_journal_that_is_read_twice_is_one(self, journal: Callable[[], DataFrame], tmp_path: Path) -> None:
        assert str(self.run(journal().union(journal()), tmp_path)) == "0:3"

    def test_files_that_are_not_there_yet_promise_nothing(
        self, spark: SparkSession, journal: Callable[[], DataFrame], tmp_path: Path
    ) -> None:
        (tmp_path / "none").mkdir()
        none = spark.readStream.schema("n long").json(str(tmp_path / "none"))
        assert str(self.run(none.union(journal().selectExpr("offset as n")), tmp_path)) == "0:3"

    def test_the_rate_source_counts_in_its_own_way(self, spark: SparkSession, tmp_path: Path) -> None:
        frame = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
        first, *_, last = self.run_endless(frame, 3, tmp_path)
        assert last["offset"] > first["offset"]
        assert last.covers(first)

    def test_the_rate_by_batch_counts_its_rows(self, spark: SparkSession, tmp_path: Path) -> None:
        frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 7).load()
        positions = self.run_endless(frame, 2, tmp_path)
        assert list(map(str, positions[:2])) == ["offset:7", "offset:14"]


def test_the_journals_that_were_read_are_told_by_their_ids() -> None:
    lines = ["-", '{"journal": "6f7e", "0": 7}', '{"journal": "6f7e", "0": 9}', '{"journal": "", "0": 0}', "5"]
    assert read_journals(lines) == {"6f7e"}
    assert read_journals(['{"calls": {"0": 12}}', '{"0": 3}', "[1]"]) == set()
