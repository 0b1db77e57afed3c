"""Checkpoints as Spark's default store writes them, made without Spark: for tests of what readers do with them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.spark_state.conftest import _compress, _delta, _encode_row, _schema_file

PACKAGE = "org.apache.spark.sql.execution.streaming.state"
CONF = {
    "spark.sql.streaming.stateStore.providerClass": f"{PACKAGE}.HDFSBackedStateStoreProvider",
    "spark.sql.streaming.stateStore.compression.codec": "lz4",
    "spark.sql.streaming.aggregation.stateFormatVersion": "2",
    "spark.sql.shuffle.partitions": "2",
}
PARTITIONS = 2
Columns = Sequence[tuple[str, Any]]
Values = Sequence[Any]
WINDOW = {
    "type": "struct",
    "fields": [{"name": name, "type": "timestamp", "nullable": True, "metadata": {}} for name in ("start", "end")],
}


@dataclass(frozen=True)
class WrittenOperator:
    """A stateful operator: Spark's name for it, and the columns of its keys and values."""

    key: Columns
    value: Columns
    name: str = "stateStoreSave"


WORDS = WrittenOperator([("word", "string")], [("count", "long")])


def window(start_us: int, end_us: int) -> bytes:
    """A window as a value of a row."""
    return _encode_row(["timestamp", "timestamp"], [start_us, end_us])


class Written:
    """A checkpoint with the state of these operators, to which batches are added."""

    def __init__(self, folder: Path, *operators: WrittenOperator, conf: Mapping[str, str] | None = None) -> None:
        self.folder, self.operators, self.conf = folder, operators, {**CONF, **(conf or {})}
        self.query, self.batches = str(uuid.uuid4()), 0
        self.put("metadata", json.dumps({"id": self.query}))
        for number, operator in enumerate(operators):
            info = {"operatorId": number, "operatorName": operator.name}
            stores = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": PARTITIONS}]
            metadata = {"operatorInfo": info, "stateStoreInfo": stores}
            self.put(f"state/{number}/_metadata/metadata", f"v1\n{json.dumps(metadata)}")
            schema = _schema_file(list(operator.key), list(operator.value))
            self.put(f"state/{number}/0/_metadata/schema", schema)

    def batch(
        self, *changes: Sequence[tuple[Values, Values | None]], source: str | None = None, watermark_us: int = 0
    ) -> None:
        """One more batch: for each operator the keys that changed, with their new values; None where they left."""
        batch = self.batches
        plan = {"batchWatermarkMs": watermark_us // 1_000, "batchTimestampMs": 1_000, "conf": self.conf}
        self.put(f"offsets/{batch}", f"v1\n{json.dumps(plan)}\n{source or json.dumps({'logOffset': batch})}")
        for number, operator in enumerate(self.operators):
            given = changes[number] if number < len(changes) else ()
            records = [
                (
                    _encode_row([type_ for _, type_ in _plain(operator.key)], key),
                    None if value is None else _encode_row([type_ for _, type_ in _plain(operator.value)], value),
                )
                for key, value in given
            ]
            for partition in range(PARTITIONS if operator.key else 1):  # as Spark does it
                mine = [record for record in records if not operator.key or sum(record[0]) % PARTITIONS == partition]
                self.put(f"state/{number}/{partition}/{batch + 1}.delta", _compress(_delta(mine)))
        self.put(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')
        self.batches += 1

    def put(self, name: str, content: bytes | str) -> None:
        """A file of the checkpoint, which appears as a whole."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}.tmp")
        hidden.write_bytes(content.encode() if isinstance(content, str) else content)
        hidden.rename(path)


def words(**counts: int) -> list[tuple[Values, Values | None]]:
    """What changed in the counts of words."""
    return [([word], [count]) for word, count in counts.items()]


def _plain(columns: Columns) -> Columns:
    """What has parts is handed over as its bytes."""
    return [(name, type_ if isinstance(type_, str) else "binary") for name, type_ in columns]
