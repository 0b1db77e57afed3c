"""What `transformWithState` leaves in its checkpoint: column families, their ids, and the variables' metadata."""

import json
import struct
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery

from tests.waiting import WAIT_S_MAX

from .checkpoint_files import Checkpoint, _lz4_blocks, versions_and_ids
from .harness import Feed, Lab, wait_until

pytestmark = pytest.mark.spark

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
PUT, DELETE, MERGE = 0x01, 0x10, 0x11
HOUR_MS = 3_600_000


def tally(*names: str, forget: str = "", amount: str = "long", ttl_ms: int | None = None) -> Any:
    """A processor with a value state of each name, or a list state, or a map state, by its first letter.

    Made in a function, so that it goes to Spark's workers by value.
    """
    from pyspark.sql.streaming import StatefulProcessor

    class Tally(StatefulProcessor):
        def init(self, handle: Any) -> None:
            if forget:
                handle.deleteIfExists(forget)
            self.states = {name: self.made(handle, name) for name in names}

        def made(self, handle: Any, name: str) -> Any:
            if name[0] == "m":
                return handle.getMapState(name, "kind string", f"amount {amount}", ttlDurationMs=ttl_ms)
            make = handle.getListState if name[0] == "l" else handle.getValueState
            return make(name, f"amount {amount}", ttlDurationMs=ttl_ms)

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            for row in rows:
                value = (row.amount,) if amount == "long" else (str(row.amount),)
                for name, state in self.states.items():
                    if row.kind == "clear":
                        state.clear()
                    elif name[0] == "m":
                        state.updateValue((row.kind,), value)
                    elif name[0] == "l":
                        state.appendList([value, value])
                    else:
                        state.update(value)
            yield Row(customer=key[0])

        def close(self) -> None: ...

    return Tally()


def by_customer(feed: Feed, processor: Any, time_mode: str = "none", output_mode: str = "Update") -> DataFrame:
    grouped = feed.stream().groupBy("customer")
    return grouped.transformWithState(processor, "customer string", output_mode, time_mode)


def used(customer: str, amount: int, kind: str = "call") -> dict[str, Any]:
    return {"customer": customer, "kind": kind, "amount": amount, "at_ms": 0}


def families(checkpoint: Checkpoint, batch: int, partition: int) -> dict[str, int] | None:
    """The ids of column families in the snapshot of this very batch; None if it has none."""
    [state_id] = checkpoint.state_ids(batch)[partition]
    path = checkpoint.state_folder(0, partition) / f"{batch + 1}_{state_id}.zip"
    if not path.exists():
        return None
    with zipfile.ZipFile(path) as snapshot:
        version, metadata = snapshot.read("metadata").decode().split("\n")
    assert version == "v1"
    ids: dict[str, int] = json.loads(metadata)["columnFamilyMapping"]
    return ids


def records(checkpoint: Checkpoint, batch: int) -> list[tuple[int, int]]:
    """The kinds of the batch's records and the families of their keys, of all partitions, with checkpoint format v2."""
    found: list[tuple[int, int]] = []
    for partition, [state_id] in enumerate(checkpoint.state_ids(batch)):
        file = checkpoint.state_folder(0, partition) / f"{batch + 1}_{state_id}.changelog"
        data = b"".join(_lz4_blocks(file.read_bytes()))
        assert data[:4] == b"\x00\x02v4"
        at = 6 + struct.unpack_from(">H", data, 4)[0]
        while data[at] != 0:
            (key_size,), (family,) = struct.unpack_from(">i", data, at + 1), struct.unpack_from("<h", data, at + 5)
            found.append((data[at], family))
            at += 5 + key_size
            at += 4 + max(0, struct.unpack_from(">i", data, at)[0])
        assert at + 1 == len(data)
    return found


def test_the_changelog_of_a_transform_with_state_is_a_v4_and_with_format_v1_a_v2(lab: Lab, feed: Feed) -> None:
    """`changelog.py` tells by these headers how records look; an aggregation's are v3 and without a header."""
    feed.add(used("emma", 1))
    with lab.conf({FORMAT: "1"}):
        lab.run(by_customer(feed, tally("value")), "update")
    headers = [
        b"".join(_lz4_blocks((lab.checkpoint.state_folder(0, partition) / "1.changelog").read_bytes()))[:4]
        for partition in (0, 1)
    ]
    another = Lab(lab.spark, lab.folder / "format2")
    another.folder.mkdir()
    another.run(by_customer(feed, tally("value")), "update")

    assert headers == [b"\x00\x02v2", b"\x00\x02v2"]
    assert records(another.checkpoint, 0)  # asserts v4


def test_a_snapshot_with_the_ids_of_the_column_families_lies_in_every_partition_from_the_first_batch_on(
    lab: Lab, feed: Feed
) -> None:
    """`column_families.py` finds there which id is which variable's, even where a partition had no rows. The next batch
    has none: a reader that comes later has to look back, along the lineage.
    """
    feed.add(used("emma", 1))
    feed.add(used("emma", 2))
    lab.run(by_customer(feed, tally("value", "list", "map")), "update")

    expected = {"default": 1, "value": 2, "$rowCounter_list": 3, "list": 4, "map": 5}
    assert [families(lab.checkpoint, 0, partition) for partition in (0, 1)] == [expected, expected]
    assert [families(lab.checkpoint, 1, partition) for partition in (0, 1)] == [None, None]


def test_a_list_is_merged_and_the_rest_is_put_and_deleted(lab: Lab, feed: Feed) -> None:
    """`changelog.py` knows these three kinds of records. A map is cleared entry by entry."""
    feed.add(used("emma", 1, "call"), used("emma", 1, "text"))
    feed.add(used("emma", 1, "clear"))
    lab.run(by_customer(feed, tally("value", "list", "map")), "update")
    ids = families(lab.checkpoint, 0, 0)
    assert ids is not None

    first, second = records(lab.checkpoint, 0), records(lab.checkpoint, 1)

    assert first.count((PUT, ids["value"])) == first.count((MERGE, ids["list"])) == first.count((PUT, ids["map"])) == 2
    assert second.count((DELETE, ids["value"])) == second.count((DELETE, ids["list"])) == 1
    assert second.count((DELETE, ids["map"])) == 2


def test_a_new_variable_gets_a_new_id_and_a_snapshot_and_a_removed_ones_id_is_not_given_again(
    lab: Lab, feed: Feed
) -> None:
    """`column_families.py` keeps the names that it has seen: an id never comes to mean another variable. The rows of a
    removed variable are deleted in the batch whose snapshot has forgotten its id.
    """
    feed.add(used("emma", 1), used("oliver", 1), used("mia", 1))
    lab.run(by_customer(feed, tally("value", "second")), "update")
    feed.add(used("emma", 2))
    lab.run(by_customer(feed, tally("value", forget="second")), "update")
    feed.add(used("emma", 3))
    lab.run(by_customer(feed, tally("value", "third", "second")), "update")

    assert families(lab.checkpoint, 0, 0) == {"default": 1, "value": 2, "second": 3}
    assert families(lab.checkpoint, 1, 0) == {"default": 1, "value": 2}
    assert families(lab.checkpoint, 2, 0) == {"default": 1, "value": 2, "third": 4, "second": 5}
    assert records(lab.checkpoint, 1).count((DELETE, 3)) == 3


def test_every_start_writes_the_variables_and_the_paths_of_all_schemas_that_there_were(lab: Lab, feed: Feed) -> None:
    """`state_variables.py` reads the newest; paths are absolute, so it takes only their names."""
    for names in (("value",), ("value",), ("value", "map")):
        feed.add(used("emma", 1))
        lab.run(by_customer(feed, tally(*names)), "update")
    folder = lab.checkpoint.path / "state" / "0"

    files = sorted(int(file.name) for file in (folder / "_metadata" / "v2").iterdir() if file.name.isdigit())
    version, text = (folder / "_metadata" / "v2" / "2").read_text().split("\n")
    metadata = json.loads(text)
    variables = json.loads(metadata["operatorPropertiesJson"])["stateVariables"]
    paths = metadata["stateStoreInfo"][0]["stateSchemaFilePaths"]

    assert (files, version) == ([0, 1, 2], "v2")
    assert sorted((one["stateName"], one["stateVariableType"], one["ttlEnabled"]) for one in variables) == [
        ("map", "MapState", False),
        ("value", "ValueState", False),
    ]
    assert [path.startswith(f"file:{folder}/_stateSchema/default/") for path in paths] == [True, True]
    assert [path.rsplit("/", 1)[1].split("_")[0] for path in paths] == ["0", "2"]


def test_a_restart_with_another_type_of_a_variable_is_refused(lab: Lab, feed: Feed) -> None:
    """So a variable's rows are all of one type, unless it was removed in between: `state_variables.py` refuses that."""
    feed.add(used("emma", 1))
    lab.run(by_customer(feed, tally("value")), "update")
    feed.add(used("emma", 1))
    with pytest.raises(StreamingQueryException, match=r"(?i)schema"):
        lab.run(by_customer(feed, tally("value", amount="string")), "update")


def test_in_processing_time_batches_without_data_follow_each_other_without_end(lab: Lab, feed: Feed) -> None:
    """A view with a time to live, or timers in processing time, never comes to rest: neither does a query with
    `availableNow` end, nor `processAllAvailable` return, and an idle view still has a batch every moment.
    """
    feed.add(used("emma", 1))
    stream = by_customer(feed, tally("value", ttl_ms=HOUR_MS), "processingTime")
    writer = stream.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(lab.checkpoint.path)).start()
    waiting = threading.Thread(target=_wait_for_all, args=(query,), daemon=True)
    waiting.start()
    try:
        wait_until(lambda: len(lab.checkpoint.committed()) > 8, timeout_s=60)
        assert query.isActive
        assert waiting.is_alive()
    finally:
        query.stop()
    waiting.join(WAIT_S_MAX)


def _wait_for_all(query: StreamingQuery) -> None:
    with suppress(Exception):  # of a query that is stopped meanwhile
        query.processAllAvailable()


def test_an_expired_value_stays_stored_until_a_batch_after_its_time_has_ended(lab: Lab, feed: Feed) -> None:
    """Spark's own reader gives it with its time of expiry, whatever the time is; so do views, as `expires_ms`."""
    feed.add(used("emma", 1))
    with lab.conf({NO_DATA_BATCHES: "false"}):
        lab.run(by_customer(feed, tally("value", ttl_ms=300), "processingTime"), "update")
        time.sleep(0.5)
        state = lab.spark.read.format("statestore").option("stateVarName", "value").load(str(lab.checkpoint.path))
        [(expires_ms,)] = state.select("value.ttlExpirationMs").collect()
        assert expires_ms < time.time() * 1000
        feed.add(used("oliver", 1))
        lab.run(by_customer(feed, tally("value", ttl_ms=300), "processingTime"), "update")
    state = lab.spark.read.format("statestore").option("stateVarName", "value").load(str(lab.checkpoint.path))

    assert [row.customer for row in state.select("key.customer").collect()] == ["oliver"]


def test_the_output_mode_of_the_transform_need_not_be_that_of_the_query(lab: Lab, feed: Feed) -> None:
    """The runner may choose the query's mode, whatever the processor was declared with."""
    feed.add(used("emma", 1))
    emitted = lab.run(by_customer(feed, tally("value"), output_mode="Append"), "update")

    assert emitted == {0: [Row(customer="emma")]}
    assert versions_and_ids(lab.checkpoint.state_folder(), "changelog")
