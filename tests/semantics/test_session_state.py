"""How Spark keeps session windows in its state."""

import json

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from .harness import Feed, Lab
from .months import usage

pytestmark = pytest.mark.spark


def sessions(stream: DataFrame) -> DataFrame:
    timed = stream.withWatermark("at", "1 hour")
    gap = sf.session_window("at", "10 minutes")
    return timed.groupBy("customer", gap, "kind").agg(sf.sum("amount").alias("total"), sf.avg("amount").alias("mean"))


def test_a_session_is_kept_under_its_start_with_its_whole_row(lab: Lab, feed: Feed) -> None:
    """The catalogue takes the end of a session, and its buffers, from these places; deletions name only the start."""
    feed.add(usage("emma", 1, 0))
    lab.run(sessions(feed.stream()), mode="append")

    schema = lab.state().schema

    assert [field.simpleString() for field in schema["key"].dataType] == [  # type: ignore[attr-defined]
        "customer:string",
        "kind:string",
        "sessionStartTime:timestamp",
    ]
    assert [field.simpleString() for field in schema["value"].dataType] == [  # type: ignore[attr-defined]
        "customer:string",
        "session_window:struct<start:timestamp,end:timestamp>",
        "kind:string",
        "sum:bigint",
        "sum:double",
        "count:bigint",
    ]


def test_the_key_of_a_session_is_stored_in_two_parts(lab: Lab, feed: Feed) -> None:
    """The changelog reader splits such keys: all columns but the start can be asked for by themselves."""
    feed.add(usage("emma", 1, 0))
    lab.run(sessions(feed.stream()), mode="append")

    metadata = (lab.checkpoint.path / "state" / "0" / "_metadata" / "metadata").read_text()

    [store] = json.loads(metadata.partition("\n")[2])["stateStoreInfo"]
    assert store["numColsPrefixKey"] == 2


def test_sessions_have_no_update_mode(lab: Lab, feed: Feed) -> None:
    """The runner starts views with sessions in append mode."""
    feed.add(usage("emma", 1, 0))
    with pytest.raises(AnalysisException, match="session window"):
        lab.run(sessions(feed.stream()), mode="update")
