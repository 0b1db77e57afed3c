"""Validation of Kafka messages: malformed, mismatched and future-dated messages become dead letters.

The append time is the broker's (`message.timestamp.type=LogAppendTime`). Where a topic keeps the producer's time, which
may be anything, the append time is the planning time of the batch: Spark's `current_timestamp()`, which the checkpoint
records, so a repeated batch refuses the same messages. The planning time is never before the true append time, and the
watermark stays within `future_s_max` of the clock. But a view folded again later accepts a message whose time has come
by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from stateside.core.errors import ViewInvalid
from stateside.journal.payload import check_fields, fitted, mismatch
from stateside.pipeline.dead_letters import FUTURE_DATED, MALFORMED, MISMATCH, Refusals, Validator, is_object

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

APPENDED: Final = "_appended"
APPEND_TIME: Final = f"if(timestampType = 1, timestamp, current_timestamp()) as {APPENDED}"
_SAID: Final = ("id", "entity", "type")


@dataclass(frozen=True, slots=True)
class KafkaValidator:
    """Parses the fields of messages in Python workers, as the journal's own source does, and refuses mismatches.

    `body` is the column with the JSON; `whole`: the body is the message's whole value, which may be anything. `time` is
    the column with the event's time. `schema` has the columns of the rows, the fields last.
    """

    validator: Validator
    topic: str
    schema: pa.Schema
    fields: pa.Schema
    body: str
    whole: bool
    time: str

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the messages that pass; for `mapInArrow`."""
        refusals = Refusals(self.validator)
        for batch in batches:
            if batch.num_rows:
                yield from self._passed(batch, refusals)
        refusals.flush()

    def _passed(self, batch: pa.RecordBatch, refusals: Refusals) -> list[pa.RecordBatch]:
        fields, misfits = self._fields(batch)
        given = [batch.column(name) for name in self.schema.names[: len(self.schema) - len(self.fields)]]
        table = pa.Table.from_arrays([*given, *fields.columns], names=self.schema.names).cast(self.schema)
        malformed = set(pc.indices_nonzero(batch.column("_malformed")).to_pylist())
        times = table[self.time].combine_chunks()
        future = self.validator.future(times, table, batch.column(APPENDED))
        refused = sorted({*malformed, *misfits, *future})
        for row in refused:
            why = self._why(batch.column(self.body)[row].as_py(), row in malformed, row in misfits, future.get(row))
            refusals.add(self._letter(batch, row, times[row].as_py(), why))
        mask = np.ones(batch.num_rows, np.bool_)
        mask[refused] = False
        passed = table if not refused else table.filter(pa.array(mask))
        return list(passed.combine_chunks().to_batches())

    def _fields(self, batch: pa.RecordBatch) -> tuple[pa.Table, set[int]]:
        texts = pc.fill_null(pc.if_else(batch.column("_malformed"), "{}", batch.column(self.body)), "{}")
        if not self.whole:
            table, misfits = fitted(texts, self.fields)
            return table, set(misfits)
        # Wrapped in an object of our own: each text gives exactly one row, whatever follows the object in the text.
        wrapped = pc.binary_join_element_wise('{"it":', texts, ',"end":true}', "")
        schema = pa.schema([("it", pa.struct(list(self.fields))), ("end", pa.bool_())])
        table, misfits = fitted(wrapped, schema)
        objects = table["it"].combine_chunks()
        nulls = pc.indices_nonzero(pc.or_(objects.is_null(), table["end"].combine_chunks().is_null())).to_pylist()
        return pa.Table.from_arrays(objects.flatten(), schema=self.fields), {*misfits, *nulls}

    def _letter(self, batch: pa.RecordBatch, row: int, time: Any, why: tuple[str, str]) -> dict[str, Any]:
        message = {name: batch.column(name)[row].as_py() for name in batch.schema.names}
        reason, detail = why
        return {
            **{"partition": f"{self.topic}-{message['partition']}", "offset": message["offset"]},
            **{"reason": reason, "detail": detail, "time": time, "appended": message[APPENDED]},
            **{name: message[name] for name in _SAID if name in message and name not in self.fields.names},
            "event": message["value"],
        }

    def _why(self, body: str, malformed: bool, misfit: bool, future: str | None) -> tuple[str, str]:
        if malformed:
            return MALFORMED, "the message is no event" if not self.whole else "key or value are no UTF-8"
        if future is not None and not misfit:
            return FUTURE_DATED, future
        return MISMATCH if is_object(body) else MALFORMED, mismatch(body, self.fields)


def validated(
    messages: DataFrame, given: Sequence[str], fields: str, validator: Validator, topic: str, *, body: str, time: str
) -> DataFrame:
    """The messages' given columns, then the fields, of the messages that pass.

    The messages also have the columns `_malformed` and `_appended`. ViewInvalid for fields that cannot be read.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import DataType, StructType

    parsed = DataType.fromDDL(fields) if fields else StructType([])
    assert isinstance(parsed, StructType), "fields are a list of columns"
    _check_names(parsed.names, messages.columns)
    schema = to_arrow_schema(parsed, timezone="UTC")
    _check_types(schema)
    rows = StructType([*(messages.schema[name] for name in given), *parsed])
    arrow = to_arrow_schema(rows, timezone="UTC")
    if time not in rows.names or not pt.is_timestamp(arrow.field(time).type):
        raise ViewInvalid(
            f"The source's time {time!r} is no timestamp of its messages",
            next_step="Name one of its fields that is declared as a timestamp, or Kafka's own `timestamp`",
        )
    through = KafkaValidator(validator, topic, arrow, schema, body, body == "value", time)
    return messages.mapInArrow(through.rows, rows)


def _check_types(schema: pa.Schema) -> None:
    advice = "Take it from the message's text with from_json, or read the source with dead_letters=False"
    try:
        check_fields(schema)
    except ViewInvalid as error:
        raise ViewInvalid(error.what, next_step=advice) from error
    for field in schema:
        if pt.is_binary(field.type):
            raise ViewInvalid(f"The field {field.name!r} has the type binary, which JSON has not", next_step=advice)


def _check_names(fields: Sequence[str], taken: Sequence[str]) -> None:
    if clashes := {name.lower() for name in fields} & {name.lower() for name in taken}:
        raise ViewInvalid(
            f"The field {min(clashes)!r} has the name of a column that every message has",
            next_step="Leave it out of the fields, and take it from the message's text with get_json_object",
        )
