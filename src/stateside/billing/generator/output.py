"""Targets of generated events: a journal, files of JSON lines, or a Kafka topic, at full speed or at a rate."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from stateside.billing.generator.event_stream import Generator
from stateside.billing.generator.expectation import ExpectedTotals
from stateside.core.errors import RequestInvalid, SinkAway
from stateside.journal import Writer, open_journal
from stateside.journal.columns import GIVEN

EVENTS_PER_FILE: Final = 1_000_000
_FLUSH_S_MAX: Final = 60.0
_PACED_PER_S: Final = 10  # batches a second if there is a rate

Write = Callable[[pa.RecordBatch], None]
Target = AbstractContextManager[Write]


def generate(
    generator: Generator,
    target: Target,
    *,
    rate: float | None = None,
) -> ExpectedTotals:
    """Write the whole stream and return the expected totals. `rate` is in events a second."""
    written = 0
    began_s = time.monotonic()
    with target as write:
        for batch in _batches(generator, rate):
            write(batch)
            written += batch.num_rows
            if rate:
                time.sleep(max(0.0, began_s + written / rate - time.monotonic()))
    return generator.report()


@contextmanager
def to_journal(directory: Path) -> Iterator[Write]:
    """Into a new journal, each event with its arrival as its append time.

    RequestInvalid if the journal has events: the generated plans would rate those events, or be refused.
    """
    with open_journal(directory).writer() as writer:
        if writer.end.events():
            raise RequestInvalid(
                f"The journal has {writer.end.events():,} events already",
                where=str(directory),
                next_step="Generate into a new folder",
            )
        yield lambda batch: _append(writer, batch)


@contextmanager
def to_files(folder: Path) -> Iterator[Write]:
    """Into a folder, as `events-000001.jsonl` and so on: an event a line, with its arrival as `appended_us`.

    For other programs. `stateside append` refuses `appended_us`, because only the journal assigns append times; and
    with other append times, plans would take effect too early. RequestInvalid if the folder has such files already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if found := sorted(folder.glob("events-*.jsonl")):
        raise RequestInvalid(
            f"There is a file {found[0].name} already", where=str(folder), next_step="Generate into a new folder"
        )
    yield _Files(folder).write


@contextmanager
def to_kafka(servers: str, topic: str) -> Iterator[Write]:
    """To a Kafka topic, in order by customer: the key is the entity, the timestamp the arrival, the value JSON.

    SinkAway if the broker did not accept everything.
    """
    from confluent_kafka import KafkaError, Message, Producer

    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 2})
    failures: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(str(error))

    def write(batch: pa.RecordBatch) -> None:
        for line in _lines(batch):
            value = json.dumps(line, ensure_ascii=False).encode()
            _produce(
                producer,
                topic,
                value,
                key=line["entity"],
                timestamp=line["appended_us"] // 1_000,
                on_delivery=delivered,
            )

    yield write
    left = producer.flush(_FLUSH_S_MAX)
    if left or failures:
        reason = failures[0] if failures else "no answer"
        raise SinkAway(
            f"{left + len(failures)} events did not get into the topic {topic}: {reason}",
            where=servers,
            next_step="See to the broker, and generate into a new topic",
        )


def _produce(producer: Any, topic: str, value: bytes, **fields: Any) -> None:
    """Produce a message, waiting while the producer's queue is full."""
    while True:
        try:
            producer.produce(topic, value, **fields)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)


class _Files:
    """Numbered files of `EVENTS_PER_FILE` lines each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the events to the newest file."""
        with self._path().open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in _lines(batch))
        self._written += batch.num_rows

    def _path(self) -> Path:
        return self._folder / f"events-{self._written // EVENTS_PER_FILE + 1:06d}.jsonl"


def _append(writer: Writer, batch: pa.RecordBatch) -> None:
    writer.append_batch(batch)


def _batches(generator: Generator, rate: float | None) -> Iterator[pa.RecordBatch]:
    rows_max = None if rate is None else max(1, int(rate / _PACED_PER_S))
    for table in generator.tables():
        if table.num_rows:
            yield from table.select(GIVEN.names).combine_chunks().to_batches(max_chunksize=rows_max)


def _lines(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    times = batch.column("time").cast(pa.int64()).to_pylist()
    appended = batch.column("appended").cast(pa.int64()).to_pylist()
    names = (batch.column(name).to_pylist() for name in ("id", "entity", "type", "payload"))
    for id_, entity, type_, payload, time_us, appended_us in zip(*names, times, appended, strict=True):
        yield {
            "id": id_,
            "entity": entity,
            "type": type_,
            "time_us": time_us,
            "payload": json.loads(payload),
            "appended_us": appended_us,
        }
