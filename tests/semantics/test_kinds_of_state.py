"""How Spark stores other kinds of state: lists, timers, the sides of a join, groups, rows in Avro, shared tables."""

import json
import struct
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf

from .checkpoint_files import Checkpoint, StateSchema, _lz4_blocks, versions_and_ids
from .harness import Feed, Lab

pytestmark = pytest.mark.spark

STATE = "spark.sql.streaming.stateStore"
MERGE_OPERATOR = f"{STATE}.rocksdb.mergeOperatorVersion"
HOUR_MS = 3_600_000
LATER_MS = 1_000 * HOUR_MS
PUT, DELETE, MERGE = 0x01, 0x10, 0x11
Record = tuple[int, str, bytes, bytes]


def keeper() -> Any:
    """A processor with a list and timers; made in a function, so that it goes to Spark's workers by value."""
    from pyspark.sql.streaming import StatefulProcessor

    class Keeper(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.list = handle.getListState("list", "amount long")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            for row in rows:
                if row.kind == "put":
                    self.list.put([(row.amount,), (row.amount,), (row.amount,)])
                else:
                    self.list.appendValue((row.amount,))
                self.handle.registerTimer(LATER_MS + row.amount)
            yield Row(customer=key[0])

        def close(self) -> None: ...

    return Keeper()


def used(customer: str, amount: int, kind: str = "call") -> dict[str, Any]:
    return {"customer": customer, "kind": kind, "amount": amount, "at_ms": 10 * HOUR_MS}


def kept(feed: Feed) -> DataFrame:
    timed = feed.stream().withWatermark("at", "1 hour")
    return timed.groupBy("customer").transformWithState(keeper(), "customer string", "Update", "eventTime")


def records(checkpoint: Checkpoint, batch: int) -> list[Record]:
    """The batch's records of all partitions: kind, name of the family, key and value."""
    found: list[Record] = []
    for partition, [state_id] in enumerate(checkpoint.state_ids(batch)):
        folder = checkpoint.state_folder(0, partition)
        with zipfile.ZipFile(folder / f"1_{checkpoint.state_ids(0)[partition][0]}.zip") as snapshot:
            ids = json.loads(snapshot.read("metadata").decode().split("\n")[1])["columnFamilyMapping"]
        names = {number: name for name, number in ids.items()}
        data = b"".join(_lz4_blocks((folder / f"{batch + 1}_{state_id}.changelog").read_bytes()))
        at = 6 + struct.unpack_from(">H", data, 4)[0]
        while data[at] != 0:
            kind, (size,) = data[at], struct.unpack_from(">i", data, at + 1)
            key, at = data[at + 5 : at + 5 + size], at + 5 + size
            (size,) = struct.unpack_from(">i", data, at)
            value, at = data[at + 4 : at + 4 + max(size, 0)], at + 4 + max(size, 0)
            found.append((kind, names[struct.unpack_from("<h", key)[0]], key[2:], value))
    return found


def long_row(number: int) -> bytes:
    """A version byte, and an UnsafeRow of one long."""
    return b"\x00" + struct.pack("<qq", 0, number)


@pytest.mark.parametrize(("operator", "delimiter"), [("1", b","), ("2", b"")])
def test_a_list_is_its_entries_with_their_sizes_and_the_merge_operators_delimiter(
    lab: Lab, feed: Feed, operator: str, delimiter: bytes
) -> None:
    """`list_values.py` takes lists apart so, and finds the merge operator's version in the offsets file."""
    feed.add(used("emma", 5, "put"))
    feed.add(used("emma", 6, "append"))
    with lab.conf({MERGE_OPERATOR: operator}):
        lab.run(kept(feed), "update")

    entry = struct.pack("<i", 17) + long_row(5)
    [(first, value)] = [(kind, value) for kind, name, _, value in records(lab.checkpoint, 0) if name == "list"]
    [(second, more)] = [(kind, value) for kind, name, _, value in records(lab.checkpoint, 1) if name == "list"]
    assert (first, value) == (PUT, delimiter.join([entry] * 3))
    assert (second, more) == (MERGE, struct.pack("<i", 17) + long_row(6))
    assert lab.checkpoint.offsets(1).metadata["conf"][MERGE_OPERATOR] == operator


def test_the_merge_operator_of_a_new_query_is_the_second_and_a_restart_keeps_it(lab: Lab, feed: Feed) -> None:
    """So one file of the query tells of all its lists."""
    feed.add(used("emma", 5, "put"))
    lab.run(kept(feed), "update")
    feed.add(used("emma", 5, "put"))
    with lab.conf({MERGE_OPERATOR: "1"}):
        lab.run(kept(feed), "update")

    assert [lab.checkpoint.offsets(batch).metadata["conf"][MERGE_OPERATOR] for batch in (0, 1)] == ["2", "2"]


def test_a_timer_is_kept_by_key_and_time_and_once_more_by_time_and_key(lab: Lab, feed: Feed) -> None:
    """`state_variables.py` reads the first; its key is in two parts, the grouping columns as a struct and the time."""
    feed.add(used("emma", 7, "append"))
    lab.run(kept(feed), "update")

    timers = {name: (kind, key, value) for kind, name, key, value in records(lab.checkpoint, 0) if "Timers" in name}
    assert sorted(timers) == ["$eventTimers_keyToTimestamp", "$eventTimers_timestampToKey"]
    kind, key, value = timers["$eventTimers_keyToTimestamp"]
    (size,) = struct.unpack_from("<i", key)
    assert (kind, key[4 + size :], value) == (PUT, long_row(LATER_MS + 7), b"\x00" + struct.pack("<qq", 1, 0))


def joined(feed: Feed) -> DataFrame:
    left = feed.stream().withWatermark("at", "1 hour")
    right = feed.stream().withWatermark("at", "1 hour").selectExpr("customer AS other", "at AS other_at", "amount AS n")
    soon_after = sf.expr("customer = other AND other_at BETWEEN at AND at + INTERVAL 1 MINUTE")
    return left.join(right, soon_after, "left_outer")


def test_a_side_of_a_join_is_kept_under_the_key_and_a_number(lab: Lab, feed: Feed) -> None:
    """`join.py` reads nothing but these stores: the key's columns have no names, `matched` comes after the row's."""
    feed.add(used("emma", 1), used("emma", 2))
    lab.run(joined(feed))

    schema = StateSchema.read(lab.checkpoint.state_folder() / "right-keyWithIndexToValue" / "_metadata" / "schema")
    names = [[(field["name"], field["type"]) for field in part] for part in (schema.key, schema.value)]
    assert names == [
        [("field0", "string"), ("index", "long")],
        [("other", "string"), ("other_at", "timestamp"), ("n", "long"), ("matched", "boolean")],
    ]


def test_a_join_of_format_3_has_its_sides_in_column_families(lab: Lab, feed: Feed) -> None:
    """`join.py` tells it by the operator's metadata, which is then of version 2."""
    feed.add(used("emma", 1))
    with lab.conf({"spark.sql.streaming.join.stateFormatVersion": "3"}):
        lab.run(joined(feed))

    assert not (lab.checkpoint.path / "state" / "0" / "_metadata" / "metadata").exists()
    assert {name for _, name, _, _ in records(lab.checkpoint, 0)} == {
        f"{side}-{part}" for side in ("left", "right") for part in ("keyToNumValues", "keyWithIndexToValue")
    }


def test_a_group_has_its_state_as_a_struct_and_its_timeout_beside_it(lab: Lab, feed: Feed) -> None:
    """`groups.py` makes columns of the struct's fields. Python's state is stored in its declared types, not pickled."""

    def count(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        import pandas as pd

        state.update((sum(map(len, frames)), "text"))
        yield pd.DataFrame({"customer": [key[0]]})

    feed.add(used("emma", 1))
    timed = feed.stream().withWatermark("at", "1 hour").groupBy("customer")
    schema = "number int, text string"
    lab.run(timed.applyInPandasWithState(count, "customer string", schema, "Update", "EventTimeTimeout"), "update")

    [row] = lab.state().collect()
    metadata = (lab.checkpoint.path / "state" / "0" / "_metadata" / "metadata").read_text().partition("\n")[2]
    assert row.value.asDict(True) == {"groupState": {"number": 1, "text": "text"}, "timeoutTimestamp": -1}
    assert json.loads(metadata)["operatorInfo"]["operatorName"] == "applyInPandasWithState"


def test_a_row_in_avro_begins_with_the_id_of_its_schema(lab: Lab, feed: Feed) -> None:
    """`avro_row.py` finds the writer's schema by it. A long in a column that may be null is 02, then the zigzag."""
    feed.add(used("emma", 5, "append"))
    with lab.conf({f"{STATE}.encodingFormat": "avro"}):
        lab.run(kept(feed), "update")

    [(key, value)] = [(key, value) for _, name, key, value in records(lab.checkpoint, 0) if name == "list"]
    assert key == b"\x00" + struct.pack("<h", 0) + b"\x02\x08emma"
    assert value == struct.pack("<i", 5) + b"\x00" + struct.pack("<h", 0) + b"\x02\x0a"


def test_only_a_transform_with_state_can_have_its_rows_in_avro(lab: Lab, feed: Feed) -> None:
    """`encoding.py` refuses Avro of any other operator: nobody knows how it would look."""
    feed.add(used("emma", 1))
    refused = "avro is not supported for operator=aggregation"
    with lab.conf({f"{STATE}.encodingFormat": "avro"}), pytest.raises(AnalysisException, match=refused):
        lab.run(feed.stream().groupBy("customer").count(), "update")


def test_negative_zero_is_a_group_of_its_own(lab: Lab, feed: Feed) -> None:
    """`keys.py` keeps it apart from 0.0: with one key for both a replica would lose a row of such a state."""

    def keep(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        state.update((sum(map(len, frames)),))
        yield from ()

    for number in ("-0.0", "0.0"):
        feed.add(used(number, 1))
    grouped = feed.stream().selectExpr("cast(customer AS double) AS number", "amount").groupBy("number")
    lab.run(grouped.applyInPandasWithState(keep, "n int", "n int", "Update", "NoTimeout"), "update")

    assert sorted(str(row.key.number) for row in lab.state().collect()) == ["-0.0", "0.0"]


def test_without_changelogs_a_version_shares_its_tables_with_the_one_before(lab: Lab, feed: Feed) -> None:
    """`version_changes.py` finds what a batch changed in the tables that are new."""
    for number in range(3):
        feed.add(*(used(f"customer-{number}-{other}", 1) for other in range(20)))
    with lab.conf({f"{STATE}.rocksdb.changelogCheckpointing.enabled": "false"}):
        lab.run(feed.stream().groupBy("customer").count(), "update")

    tables = []
    for version, state_id in versions_and_ids(lab.checkpoint.state_folder(), "zip"):
        with zipfile.ZipFile(lab.checkpoint.state_folder() / f"{version}_{state_id}.zip") as snapshot:
            metadata = json.loads(snapshot.read("metadata").decode().split("\n")[1])
        tables.append({entry["dfsSstFileName"] for entry in metadata["sstFiles"]})
    assert [len(one) for one in tables] == [1, 2, 3]
    assert tables[0] < tables[1] < tables[2]
