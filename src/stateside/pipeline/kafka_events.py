"""A journal on Kafka as a view's source: Spark's own connector reads the topic, and its messages become events.

Every committed message is a row:

    partition, offset                      where it stands
    id, entity, type, time, appended,      as the journal's own source has them (`journal.columns`)
    tags, payload, sequence, version,
    metadata, data, extra
    value                                  the whole message as text; fields of a newer Stateside are found in it
    _malformed                             whether it is no event (`journal.kafka.messages` has the format): all columns
                                           but partition, offset and value are null then
    …                                      the payload's fields; null if the payload does not have them

Messages that are no events, do not fit the fields or are dated too far ahead become dead letters (`kafka_validator`),
and `_malformed` is false in every row. Without `dead_letters` each is a row: the fields are all null if one of them has
another type, so a view that ignores `_malformed` counts such a message, but adds nothing of it; one that filters by it
decides what becomes of the others. Messages that are no events are never left out, whatever types or tags are asked
for. Where offsets that a query needs were deleted by retention, the query stops (Spark's failOnDataLoss).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from stateside.errors import ViewInvalid
from stateside.pipeline.dead_letters import Validator
from stateside.pipeline.kafka_validator import APPEND_TIME, APPENDED, validated
from stateside.secret_options import with_secrets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stateside.pipeline.sources import Reading

_VALUE = (
    "id string, entity string, type string, time_us bigint, appended_us bigint, tags array<string>, payload string, "
    "sequence bigint, version smallint, metadata string, data string, extra string"
)
_NEEDED = ("id", "entity", "type", "time_us", "appended_us", "sequence")
_COLUMNS = {
    "id": "_it.id",
    "entity": "_it.entity",
    "type": "_it.type",
    "time": "timestamp_micros(_it.time_us)",
    "appended": "timestamp_micros(_it.appended_us)",
    "tags": "if(_it is null, null, coalesce(_it.tags, array()))",
    "payload": "if(_it is null, null, coalesce(_it.payload, '{}'))",
    "sequence": "_it.sequence",
    "version": "if(_it is null, null, coalesce(_it.version, 1S))",
    "metadata": "_it.metadata",
    "data": "try_to_binary(_it.data, 'base64')",
    "extra": "_it.extra",
}
_OTHERS = ("partition", "offset", "value", "_malformed", "_it", "_fields")


@dataclass(frozen=True, slots=True)
class KafkaEvents:
    """Events of a journal on Kafka: all, or those of some types, or with any of some tags."""

    servers: str = field(repr=False)  # where the same topic is today: no other source, and options may hold secrets
    topic: str
    fields: str = ""
    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    dead_letters: bool = field(default=True, repr=False)

    needs_jars: ClassVar[tuple[str, ...]] = ("kafka",)

    def load(self, session: SparkSession, reading: Reading) -> DataFrame:
        """The events, from the earliest on; with the payload's fields that this source or the run names."""
        defaults = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(reading.events_per_batch_max)}
        fixed = {
            "kafka.bootstrap.servers": self.servers,
            "kafka.isolation.level": "read_committed",
            "subscribe": self.topic,
            "includeHeaders": "true",
        }
        options = defaults | with_secrets(self.options) | fixed
        messages = session.readStream.format("kafka").options(**options).load()
        fields = self.fields or reading.fields
        if not self.dead_letters or reading.refused is None:
            return self._selected(parse_events(messages, fields))
        return self.validated(messages, fields, Validator(reading.refused, reading.future_us_max, reading.times))

    def validated(self, messages: DataFrame, fields: str, validator: Validator) -> DataFrame:
        """Kafka's rows as events, without those that become dead letters."""
        timed = messages.selectExpr("*", APPEND_TIME)
        events = self._selected(parse_events(timed, "", carried=(APPENDED,)))
        given = [name for name in events.columns if name != APPENDED]
        return validated(events, given, fields, validator, self.topic, body="payload", time="time")

    def _selected(self, events: DataFrame) -> DataFrame:
        for condition in self._conditions():
            events = events.where(condition)
        return events

    def _conditions(self) -> list[str]:
        found = []
        if self.types:
            found.append(f"_malformed or type in ({_quoted(self.types)})")
        if self.tags:
            found.append(f"_malformed or arrays_overlap(tags, array({_quoted(self.tags)}))")
        return found


def parse_events(messages: DataFrame, fields: str, carried: Sequence[str] = ()) -> DataFrame:
    """Kafka's rows, with headers, as those described above; `carried` are columns that go along as they are.

    The value is parsed inside of an object of our own, `{"it": VALUE, "end": true}`: Spark's parser stops at the end of
    what it was asked for, and would not see a second object, or rubbish, behind the first.
    """
    texts = messages.selectExpr(*("partition", "offset", "headers", "key", "cast(value as string) as value", *carried))
    wrapped = """concat('{"it":', value, ',"end":true}')"""
    parsed = texts.selectExpr("*", f"{_from_json(wrapped, f'it struct<{_VALUE}>, end boolean')} as _parsed")
    judged = parsed.selectExpr("*", f"coalesce({_judgement()}, true) as _malformed")
    told = judged.selectExpr(
        *("partition", "offset", "make_valid_utf8(value) as value", "_malformed", *carried),
        "if(_malformed, null, _parsed.it) as _it",
    )
    columns = [f"{expression} as {name}" for name, expression in _COLUMNS.items()]
    payload = f"{_from_json('_it.payload', _escaped(fields))} as _fields" if fields else "null as _fields"
    told = told.selectExpr("partition", "offset", *columns, "value", "_malformed", payload, *carried)
    if not fields:
        return told.drop("_fields")
    _check_names(told)
    whole = told.selectExpr("* except (_fields)", "if(_fields._broken is null, _fields, null) as _fields")
    return whole.select("*", "_fields.*").drop("_fields", "_broken")


def _judgement() -> str:
    """Whether a message is no event, as `journal.kafka.messages` judges it."""
    it = "_parsed.it"
    reasons = [
        "value is null",
        "not is_valid_utf8(value)",
        "_parsed._broken is not null or _parsed.end is null or _parsed.it is null",
        *(f"{it}.{name} is null" for name in _NEEDED),
        f"{it}.sequence < 1 or {it}.appended_us < 0 or {it}.time_us not between 0 and 7258118399999999",
        f"key is null or cast(key as string) != {it}.entity",
        f"length({it}.id) not between 1 and 200 or length({it}.entity) not between 1 and 200",
        f"length({it}.type) not between 1 and 200 or coalesce({it}.version, 1S) < 1",
        f"{it}.payload is not null and json_object_keys({it}.payload) is null",
        f"{it}.data is not null and ({it}.payload is not null or try_to_binary({it}.data, 'base64') is null)",
        "exists(coalesce(headers, array()), h -> h.key = 'stateside-event' and h.value != X'31')",
    ]
    return " or ".join(f"coalesce({reason}, false)" for reason in reasons)


def _from_json(text: str, schema: str) -> str:
    options = "map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '_broken')"
    return f"from_json({text}, '{schema}, _broken string', {options})"


def _quoted(texts: Sequence[str]) -> str:
    return ", ".join(f"'{_escaped(text)}'" for text in texts)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _check_names(told: DataFrame) -> None:
    names = {field.name.lower() for field in told.schema["_fields"].dataType.fields}  # type: ignore[attr-defined]
    if clashes := names & {*_COLUMNS, *_OTHERS}:
        raise ViewInvalid(
            f"The field {min(clashes)!r} has the name of a column that every event has",
            next_step="Leave it out of the fields, and take it from `payload` with get_json_object",
        )
