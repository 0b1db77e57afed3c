"""Messages on Kafka that are no events, do not fit or are dated too far ahead: dead letters, and no rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from stateside.core.errors import ViewInvalid
from stateside.core.layout import Layout
from stateside.pipeline import sources
from stateside.pipeline.dead_letters import Validator
from stateside.pipeline.kafka_source import KafkaEvents
from stateside.pipeline.sources import KafkaTopic
from stateside.pipeline.watermarks import times_to_check
from tests.journal.kafka.topics import stored_value
from tests.pipeline.test_kafka_source import MALFORMED

pytestmark = pytest.mark.spark

HOUR_US = 3_600_000_000
KAFKA_ROW = (
    "topic string, partition int, offset long, timestamp timestamp, timestampType int, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>"
)
CREATED, APPENDED = 0, 1  # Kafka's message.timestamp.type
BROKER = datetime(2026, 3, 1, 12, tzinfo=UTC)
FIELDS = "who string, cents long, at timestamp"

Letter = tuple[str, int, str]


def messages(
    spark: SparkSession, *values: bytes | None, kind: int = APPENDED, time: datetime = BROKER, key: bytes = b"emma"
) -> DataFrame:
    rows = [("calls", 3, offset, time, kind, key, value, None) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, KAFKA_ROW)


def judged(frame: DataFrame, folder: Path) -> tuple[list[dict[str, Any]], list[Letter]]:
    found = [row.asDict() for row in frame.orderBy("offset").collect()]
    files = [pa.ipc.open_file(path.read_bytes()).read_all() for path in sorted(folder.glob("*.arrow"))]
    letters = [letter for file in files for letter in file.to_pylist()]
    told = sorted((letter["partition"], letter["offset"], letter["reason"]) for letter in letters)
    return found, told


def topic(**options: Any) -> KafkaTopic:
    source = sources.kafka("localhost:9092", "calls", fields=FIELDS, **options)
    assert isinstance(source, KafkaTopic)
    return source


class TestTopics:
    def test_what_fits_is_a_row_and_what_does_not_a_dead_letter(self, spark: SparkSession, tmp_path: Path) -> None:
        fine = b'{"who":"emma","cents":5,"at":"2026-03-01T11:00:00Z","more":[1]}'
        number = b'{"who":7}'
        given = messages(spark, fine, *MALFORMED, None, b"{}", b' {"cents":null}\n', number)
        rows, letters = judged(topic().validated(given, Validator(tmp_path, HOUR_US)), tmp_path)
        assert [(row["offset"], row["who"], row["cents"]) for row in rows] == [
            *((0, "emma", 5), (len(MALFORMED) + 1, None, None)),
            *((len(MALFORMED) + 2, None, None), (len(MALFORMED) + 3, None, None)),
        ]
        assert rows[0]["value"] == fine.decode() and rows[0]["_malformed"] is False
        assert [(partition, offset) for partition, offset, _ in letters] == [
            ("calls-3", offset) for offset in (*range(1, len(MALFORMED) + 1), len(MALFORMED) + 4)
        ]
        kinds = {"mismatch": {6, 7, 8, 9, len(MALFORMED) + 4}}
        assert {offset for _, offset, reason in letters if reason == "mismatch"} == kinds["mismatch"]
        assert {reason for _, _, reason in letters} == {"malformed", "mismatch"}

    def test_two_faults_that_add_up_to_the_right_number_of_objects_move_no_row(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        given = messages(spark, b'{"cents":1}{"cents":2}', b"", b'{"cents":3}').coalesce(1)
        rows, letters = judged(topic().validated(given, Validator(tmp_path, None)), tmp_path)
        assert [(row["offset"], row["cents"]) for row in rows] == [(2, 3)]
        assert [offset for _, offset, _ in letters] == [0, 1]

    def test_the_time_is_held_against_the_brokers_and_not_the_producers(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        at = (b'{"at":"2026-03-01T13:00:00Z"}', b'{"at":"2026-03-01T13:00:00.001Z"}', b'{"at":"2099-01-01T00:00:00Z"}')
        rows, letters = judged(topic(time="at").validated(messages(spark, *at), Validator(tmp_path, HOUR_US)), tmp_path)
        assert [row["offset"] for row in rows] == [0]
        assert letters == [("calls-3", 1, "future-dated"), ("calls-3", 2, "future-dated")]

    def test_a_producers_time_is_no_append_time(self, spark: SparkSession, tmp_path: Path) -> None:
        """A producer that dates its messages 2099 would else be believed, and move the watermark there."""
        far = datetime(2099, 1, 1, tzinfo=UTC)
        value = b'{"at":"2099-01-01T00:00:00Z"}'
        for name in (None, "at"):
            folder = tmp_path / str(name)
            given = messages(spark, value, kind=CREATED, time=far)
            rows, letters = judged(topic(time=name).validated(given, Validator(folder, HOUR_US)), folder)
            assert (rows, letters) == ([], [("calls-3", 0, "future-dated")])

    def test_a_producers_time_may_lag(self, spark: SparkSession, tmp_path: Path) -> None:
        now = datetime.now(UTC) - timedelta(minutes=5)
        value = json.dumps({"at": now.isoformat()}).encode()
        given = messages(spark, value, kind=CREATED, time=datetime(1970, 1, 2, tzinfo=UTC))
        rows, letters = judged(topic(time="at").validated(given, Validator(tmp_path, HOUR_US)), tmp_path)
        assert (len(rows), letters) == (1, [])

    @pytest.mark.parametrize("fields", ["who map<string,int>", "who binary", "Value string"])
    def test_fields_that_cannot_be_read_so_are_refused_at_the_start(
        self, spark: SparkSession, tmp_path: Path, fields: str
    ) -> None:
        source = sources.kafka("localhost:9092", "calls", fields=fields)
        assert isinstance(source, KafkaTopic)
        with pytest.raises(ViewInvalid, match=f"(?i)'{fields.split()[0]}'"):
            source.validated(messages(spark), Validator(tmp_path, None))

    def test_a_watermark_needs_a_time_that_the_source_knows(self, spark: SparkSession, tmp_path: Path) -> None:
        rows = spark.readStream.format("rate").load().selectExpr("timestamp", "value as offset")
        bytes_ = [f"cast('' as binary) as {name}" for name in ("key", "value")]
        endless = rows.selectExpr("*", "'calls' as topic", "0 as partition", "1 as timestampType", *bytes_)
        for source, column, refused in (
            *((topic(), "at", True), (topic(), "timestamp", False), (topic(time="at"), "at", False)),
            *((topic(dead_letters=False), "at", False), (topic(time="at"), "until", False)),
            (topic(time="at"), "timestamp", True),
        ):
            events = source.validated(endless, Validator(tmp_path, HOUR_US))
            named = events.selectExpr("*", "at + interval 1 day as until")
            frame = named.withWatermark(column, "1 hour").groupBy("who").count()
            if refused:
                with pytest.raises(ViewInvalid, match=rf"sets its watermark on '{column}'.*time='{column}'"):
                    times_to_check("total", source, events, frame)
            else:
                assert times_to_check("total", source, events, frame) == ()


class TestJournals:
    def test_the_append_time_that_a_producer_claims_is_held_against_the_brokers_for_a_watermark(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        source = sources.kafka_journal("localhost:9092", "calls")
        assert isinstance(source, KafkaEvents)
        broker_us = round(BROKER.timestamp() * 1_000_000)
        claims = [broker_us + ahead_us for ahead_us in (HOUR_US, HOUR_US + 1)]
        values = [
            stored_value(str(number), number + 1, time_us=broker_us, appended_us=claim)
            for number, claim in enumerate(claims)
        ]
        endless = (
            spark.readStream.format("rate")
            .load()
            .selectExpr(
                *("'calls' as topic", "0 as partition", "value as offset", "timestamp", "1 as timestampType"),
                *("cast('' as binary) as key", "cast('' as binary) as value"),
                "cast(null as array<struct<key:string,value:binary>>) as headers",
            )
        )
        checked = source.validated(endless, "", Validator(tmp_path, HOUR_US))
        for column, times in (("time", ()), ("appended", ("appended",))):
            marked = checked.withWatermark(column, "1 hour").groupBy("entity").count()
            assert times_to_check("total", source, checked, marked) == times
        validator = Validator(tmp_path, HOUR_US, ("appended",))
        rows, letters = judged(source.validated(messages(spark, *values), "", validator), tmp_path)
        assert [row["appended"].timestamp() for row in rows] == [BROKER.timestamp() + 0.000999] * 2
        assert letters == []
        claim = stored_value("2", 3, time_us=broker_us, appended_us=4_070_908_800_000_000)  # in 2099
        rows, letters = judged(source.validated(messages(spark, claim, kind=CREATED), "", validator), tmp_path)
        assert (rows, letters) == ([], [("calls-3", 0, "future-dated")])

    def test_events_are_rows_and_the_rest_dead_letters(self, spark: SparkSession, tmp_path: Path) -> None:
        source = sources.kafka_journal("localhost:9092", "calls", types=["t"])
        assert isinstance(source, KafkaEvents)
        broker_us = round(BROKER.timestamp() * 1_000_000)
        values = [
            stored_value("a", 1, type="t", time_us=broker_us + HOUR_US, payload={"cents": 5}),
            stored_value("b", 2, type="t", time_us=broker_us + HOUR_US + 1, appended_us=broker_us + HOUR_US),
            stored_value("c", 3, type="t", payload={"cents": "five"}),
            b"hello",
            stored_value("d", 4, type="other", payload={"cents": "five"}),
        ]
        frame = source.validated(messages(spark, *values), "cents long", Validator(tmp_path, HOUR_US))
        rows, letters = judged(frame, tmp_path)
        assert [(row["id"], row["cents"], row["sequence"], row["_malformed"]) for row in rows] == [("a", 5, 1, False)]
        assert letters == [
            *(("calls-3", 1, "future-dated"), ("calls-3", 2, "mismatch"), ("calls-3", 3, "malformed")),
        ]


def test_spark_takes_the_present_from_the_batch_that_stands_in_the_checkpoint(
    spark: SparkSession, layout: Layout
) -> None:
    """So a batch that is run again sees the same append time of messages whose own time is the producer's."""
    from stateside.core.storage import Storage
    from stateside.journal import Event
    from stateside.pipeline.sources import Reading, journal
    from stateside.spark_state.batch_log import Checkpoint
    from stateside.testing import append

    append(layout, [Event("a", "emma", "call", 0, {})])
    checkpoint, seen = layout.root / "checkpoint", []
    events = journal().load(spark, Reading(layout.journal)).selectExpr("current_timestamp() as now")

    def fails_once(frame: DataFrame, batch: int) -> None:
        seen.append(frame.collect()[0]["now"])
        assert len(seen) > 1, "a test fails here"

    for _ in range(2):
        query = events.writeStream.foreachBatch(fails_once).option("checkpointLocation", str(checkpoint)).start()
        try:
            query.processAllAvailable()
        except Exception:
            assert len(seen) == 1
        finally:
            query.stop()
    planned_us = Checkpoint(Storage.at(checkpoint)).plan(0).planned_us
    assert [round(now.timestamp() * 1_000_000) for now in seen] == [planned_us, planned_us]
