"""Kafka journal source: Spark's own connector reads the topic, and its messages become events.

Every committed message is a row:

    partition, offset                      the message's place
    id, entity, type, time, appended,      as in the journal's own source (`journal.columns`)
    tags, payload, sequence, version,
    metadata, data, extra
    value                                  the whole message as text, with any fields of a newer Stateside
    _malformed                             whether the message is no event (format: `journal.kafka.messages`); all
                                           columns but partition, offset and value are then null
    …                                      the payload's fields; null if absent from the payload

Messages that are no events, do not fit the fields or are dated too far ahead become dead letters (`kafka_validator`),
and `_malformed` is false in every row. Without `dead_letters` each message is a row, with null in all fields if one has
another type: a view that ignores `_malformed` counts such a message but adds nothing of it; a view that filters by
`_malformed` decides itself. Messages that are no events are never left out, whatever types or tags are selected. If
retention deleted offsets that a query needs, the query stops (Spark's failOnDataLoss).

Access: a topic's options are librdkafka's (`journal.kafka.topic`), and are translated for Spark's Kafka client:

    security.protocol, sasl.mechanism,              the same
    ssl.key.password
    ssl.endpoint.identification.algorithm           the same, but `none` becomes empty
    sasl.username, sasl.password                    sasl.jaas.config, for PLAIN and SCRAM
    ssl.ca.location, ssl.ca.pem                     a trust store in PEM
    ssl.certificate.location, ssl.certificate.pem,  a key store in PEM
    ssl.key.location, ssl.key.pem

Other access options are refused: a connection must never be weaker than configured. All remaining options tune
Stateside's own clients and are not passed to Spark's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stateside.core.errors import SettingInvalid, ViewInvalid
from stateside.core.secrets import with_secrets
from stateside.pipeline.dead_letters import Validator
from stateside.pipeline.kafka_validator import APPEND_TIME, APPENDED, validated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stateside.pipeline.sources import Reading

_VALUE = (
    "id string, entity string, type string, time_us bigint, appended_us bigint, tags array<string>, payload string, "
    "sequence bigint, version smallint, metadata string, data string, extra string"
)
_NEEDED = ("id", "entity", "type", "time_us", "appended_us", "sequence")
# Of a topic that keeps the producers' times there is none.
_BROKER_TIME = "if(timestampType = 1, timestamp_micros(unix_millis(timestamp) * 1000 + 999), null)"
_COLUMNS = {
    "id": "_it.id",
    "entity": "_it.entity",
    "type": "_it.type",
    "time": "timestamp_micros(_it.time_us)",
    "appended": f"if(_it is null, null, least(timestamp_micros(_it.appended_us), {_BROKER_TIME}))",
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
    """Events of a journal on Kafka: all, or with some types, or with any of some tags."""

    servers: str = field(repr=False)  # not in repr: the same topic may move, and options may hold secrets
    topic: str
    fields: str = ""
    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    dead_letters: bool = field(default=True, repr=False)

    needs_jars: ClassVar[tuple[str, ...]] = ("kafka",)

    def load(self, session: SparkSession, reading: Reading) -> DataFrame:
        """The events, from the earliest on, with the payload's fields from this source or the run."""
        defaults = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(reading.events_per_batch_max)}
        fixed = {
            "kafka.bootstrap.servers": self.servers,
            "kafka.isolation.level": "read_committed",
            "subscribe": self.topic,
            "includeHeaders": "true",
        }
        options = defaults | with_secrets(self.options) | fixed
        from stateside.pipeline.sources import kafka_messages

        messages = kafka_messages(session, options, reading)
        fields = self.fields or reading.fields
        if not self.dead_letters or reading.refused is None:
            return self._selected(parse_events(messages, fields))
        return self.validated(messages, fields, Validator(reading.refused, reading.future_us_max, reading.times))

    def validated(self, messages: DataFrame, fields: str, validator: Validator) -> DataFrame:
        """Kafka's rows as events, without dead letters."""
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
    """Kafka's rows, with headers, as described above; `carried` columns are passed through.

    The value is parsed inside an object of our own, `{"it": VALUE, "end": true}`: Spark's parser stops at the end of
    the requested object, and would not see a second object or garbage after the first.
    """
    given = ("partition", "offset", "headers", "key", "timestamp", "timestampType")
    texts = messages.selectExpr(*given, "cast(value as string) as value", *carried)
    wrapped = """concat('{"it":', value, ',"end":true}')"""
    parsed = texts.selectExpr("*", f"{_from_json(wrapped, f'it struct<{_VALUE}>, end boolean')} as _parsed")
    judged = parsed.selectExpr("*", f"coalesce({_judgement()}, true) as _malformed")
    told = judged.selectExpr(
        *("partition", "offset", "timestamp", "timestampType", "_malformed", *carried),
        "make_valid_utf8(value) as value",
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
    """SQL: whether a message is no event, by the rules of `journal.kafka.messages`."""
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


_ACCESS = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https.")
_ALIASES = {"sasl.mechanisms": "sasl.mechanism"}  # librdkafka accepts both
_SAME = ("security.protocol", "sasl.mechanism", "ssl.key.password")
_VERIFIED = "ssl.endpoint.identification.algorithm"
_TRUSTED = {"ssl.ca.location": "ssl.truststore.location", "ssl.ca.pem": "ssl.truststore.certificates"}
_OWN = {"ssl.certificate.pem": "ssl.keystore.certificate.chain", "ssl.key.pem": "ssl.keystore.key"}
_OWN_FILES = {"ssl.certificate.location": "ssl.certificate.pem", "ssl.key.location": "ssl.key.pem"}
_USER, _PASSWORD = "sasl.username", "sasl.password"
_KNOWN = (*_SAME, _VERIFIED, *_TRUSTED, *_OWN, *_OWN_FILES, _USER, _PASSWORD)
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def spark_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options for Spark's connector, with secrets; SettingInvalid names an option without a translation."""
    given = with_secrets({_ALIASES.get(name, name): value for name, value in options.items()})
    found: dict[str, str] = {}
    for name, value in given.items():
        if name in _KNOWN:
            found |= _said(name, value)
        elif name.startswith(_ACCESS):
            raise _unsaid(name)
    if _USER in given or _PASSWORD in given:
        found["sasl.jaas.config"] = _login(given)
    return {f"kafka.{name}": value for name, value in found.items()}


def _said(name: str, value: str) -> dict[str, str]:
    """One option in the terms of Java's client."""
    if name in _OWN_FILES:  # Java wants certificate and key in one file: pass the text of both
        return _said(_OWN_FILES[name], _text(name, value))
    if name in _OWN:
        return {"ssl.keystore.type": "PEM", _OWN[name]: value}
    if name in _TRUSTED:
        return {"ssl.truststore.type": "PEM", _TRUSTED[name]: value}
    if name == _VERIFIED:
        return {name: "" if value == "none" else value}
    return {name: value} if name in _SAME else {}


def _login(given: Mapping[str, str]) -> str:
    """User and password as a JAAS configuration."""
    mechanism = given.get("sasl.mechanism", "GSSAPI")
    if mechanism not in _MODULES:
        raise SettingInvalid(
            f"A user and a password do not go with sasl.mechanism={mechanism}",
            next_step=f"Set it to one of {', '.join(_MODULES)}",
        )
    user, password = (_jaas_quoted(given.get(name, "")) for name in (_USER, _PASSWORD))
    return f"{_MODULES[mechanism]} required username={user} password={password};"


def _jaas_quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _text(name: str, path: str) -> str:
    try:
        return Path(path).read_text("ascii")
    except (OSError, ValueError) as error:
        raise SettingInvalid(
            f"The file that {name} names cannot be read: {error}",
            next_step="Name one in the format PEM, which this process may read",
        ) from error


def _unsaid(name: str) -> SettingInvalid:
    return SettingInvalid(
        f"Stateside cannot tell Spark's Kafka client {name!r}",
        next_step=f"Use {', '.join(_KNOWN)}; a view of your own can tell it in its own words: "
        "source=stateside.sources.kafka_journal(…, options={…})",
    )
