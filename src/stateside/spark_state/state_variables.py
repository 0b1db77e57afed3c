"""State variables: the declarations of a `transformWithState`, and the encoding of their keys and values.

    state/OPERATOR/_metadata/v2/BATCH := "v2\\n" {"stateStoreInfo": [{"stateSchemaFilePaths": [path…], …}],
        "operatorPropertiesJson": JSON text of {"stateVariables": [{"stateName", "stateVariableType", "ttlEnabled"}…]}}

one file for each start of the query; `column_families` reads the schemas. A row is an UnsafeRow (or see `avro_row`)
after a version byte 00:

    ValueState:  key := 00 row of the grouping columns
    MapState:    key := size (i32, little-endian)  00 row of one struct, the grouping columns
                        00 row of one struct, the map's key      (the size is that of the first row with its 00)
    ListState:   key as of a value state; value := see `column_families`, each entry a value as below
    TimerState:  key := size (i32, little-endian)  00 row of one struct, the grouping columns
                        00 row of one long, the time in milliseconds        value := 00 row of nothing
    value := 00 row of the value's fields
           | 00 row of (struct of the value's fields, long ttlExpirationMs)      where values expire

An expired entry stays stored until the end of the next batch after its expiry. Like Spark's own `statestore` reader,
this module returns the state as stored, with the expiry time as `expires_ms`.

Spark stores timers twice, by key and by time; this module reads the family by key, as a variable `timers` (or, if the
processor has a variable of that name itself, under Spark's own name).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stateside.core.errors import CheckpointInvalid
from stateside.core.storage import Storage
from stateside.spark_state.avro_row import Encoding, Versions
from stateside.spark_state.batch_log import Checkpoint
from stateside.spark_state.changelog import plain_row
from stateside.spark_state.column_families import Family, schemas
from stateside.spark_state.compression import damaged
from stateside.spark_state.types import Column, columns_of
from stateside.spark_state.unsafe_row import Value

EXPIRES = Column("expires_ms", "long")
INDEX = Column("index", "integer")
TIMERS = "timers"
VALUE_STATE, MAP_STATE, LIST_STATE, TIMER_STATE = "ValueState", "MapState", "ListState", "TimerState"
_WHOLE_KEY = {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}
_KEY_IN_TWO_PARTS = {"keyStateEncoderType": "PrefixKeyScanStateEncoderSpec", "numColsPrefixKey": 1}
_ENCODERS = {
    VALUE_STATE: _WHOLE_KEY,
    LIST_STATE: _WHOLE_KEY,
    MAP_STATE: _KEY_IN_TWO_PARTS,
    TIMER_STATE: _KEY_IN_TWO_PARTS,
}
_SIZE = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class StateVariable:
    """A variable: its name, Spark's word for its kind, whether its values expire, and the columns of its parts.

    `entry` distinguishes the entries of one key: a map's key, the index in a list (from 0), a timer's time. `stored`
    has the columns of the stored value by schema id: with Avro there may be several.
    """

    name: str
    kind: str
    expires: bool
    grouping: tuple[Column, ...]
    entry: tuple[Column, ...]
    value: tuple[Column, ...]
    stored: Mapping[int, tuple[Column, ...]] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> tuple[Column, ...]:
        """The columns that identify an entry: the grouping columns, then those of the entry."""
        return self.grouping + self.entry

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of an entry's content: the value's fields, and the expiry time if values expire."""
        return (*self.value, EXPIRES) if self.expires else self.value


def read_variables(storage: Storage, operator: int) -> dict[str, StateVariable]:
    """The variables of an operator by name; FileNotFoundError before its first batch is planned."""
    metadata, name = Checkpoint(storage).operator_metadata(operator)
    try:
        declared = json.loads(metadata["operatorPropertiesJson"])["stateVariables"]
        versions = list(schemas(storage, operator, metadata["stateStoreInfo"][0]["stateSchemaFilePaths"]))
        variables = [_variable(one, versions) for one in declared]
    except (ValueError, LookupError, TypeError) as error:
        raise CheckpointInvalid(
            f"The state's variables cannot be read: {error!r}",
            where=storage.path(name),
            next_step="Only the state of a transformWithState has variables",
        ) from error
    names = {variable.name for variable in variables}
    return {_called(variable, names): variable for variable in variables}


class KeyDecoder:
    """Decodes the keys of a variable's column family."""

    def __init__(self, variable: StateVariable, encoding: Encoding = Encoding.UNSAFE_ROW) -> None:
        self._decoder = encoding.decoder(variable.grouping)
        self._first = encoding.decoder([_struct(variable.grouping)], identified=False)
        self._second = encoding.decoder([_struct(variable.entry)] if variable.kind == MAP_STATE else variable.entry)
        self._in_two_parts = _ENCODERS[variable.kind] is _KEY_IN_TWO_PARTS
        self._is_map = variable.kind == MAP_STATE

    def decode(self, key: bytes, path: str) -> tuple[Value, ...]:
        """The values of the variable's key columns; of a list, those of the grouping columns."""
        if not self._in_two_parts:
            return self._decoder.decode(plain_row(key, path))
        first, second = _split(key, path)
        entry = self._second.decode(plain_row(second, path))
        return _fields(self._first.decode(plain_row(first, path))) + (_fields(entry) if self._is_map else entry)


class ValueDecoder:
    """Decodes the values of a variable, each without its version byte. `versions` reads Avro's schemas."""

    def __init__(
        self,
        variable: StateVariable,
        encoding: Encoding = Encoding.UNSAFE_ROW,
        versions: Versions | None = None,
    ) -> None:
        self._expires = variable.expires
        wrapped = [_struct(variable.value, "value"), Column("ttlExpirationMs", "long")]
        self._decoder = encoding.decoder(wrapped if variable.expires else variable.value, versions)

    def decode(self, row: bytes) -> tuple[Value, ...]:
        """The values of the variable's columns."""
        values = self._decoder.decode(row)
        if not self._expires:
            return values
        fields, expires_ms = values
        assert isinstance(fields, tuple), "a struct decodes to a tuple"
        return (*fields, expires_ms)


def _called(variable: StateVariable, names: set[str]) -> str:
    return TIMERS if variable.kind == TIMER_STATE and TIMERS not in names else variable.name


def _split(key: bytes, path: str) -> tuple[bytes, bytes]:
    if len(key) < _SIZE.size or not 0 <= _SIZE.unpack_from(key)[0] <= len(key) - _SIZE.size:
        raise damaged(path, 0, "a key in two parts is cut short")
    middle = _SIZE.size + _SIZE.unpack_from(key)[0]
    return key[_SIZE.size : middle], key[middle:]


def _fields(row: tuple[Value, ...]) -> tuple[Value, ...]:
    """The fields of a row's only column, a struct."""
    (part,) = row
    assert isinstance(part, tuple), "a struct decodes to a tuple"
    return part


def _variable(declared: dict[str, Any], families: list[dict[str, Family]]) -> StateVariable:
    name, kind, expires = declared["stateName"], declared["stateVariableType"], declared["ttlEnabled"]
    found = [schema[name] for schema in families if name in schema]
    stored = {family.value_id: columns_of(family.value) for family in found}
    versions = [_parts(name, kind, expires, family) for family in found]
    evolved = any(columns_of(family.value) != stored[family.value_id] for family in found)
    if name not in families[-1] or evolved or any(version.key != versions[-1].key for version in versions):
        raise ValueError(f"the variable {name} was redeclared with another type; start the query on a new folder")
    return replace(versions[-1], stored=stored)


def _parts(name: str, kind: str, expires: bool, family: Family) -> StateVariable:
    if kind not in _ENCODERS:
        raise ValueError(f"the variable {name} is a {kind}, which is not known")
    if family.encoder != _ENCODERS[kind]:
        raise ValueError(f"the keys of the {kind} {name} are encoded in a way that is not known, {family.encoder}")
    if kind == TIMER_STATE:
        grouping = columns_of(_field(family.key, 0, "key"))
        _field(family.key, 1, "expiryTimestampMs")
        return StateVariable(name, kind, False, grouping, (EXPIRES,), ())
    value = columns_of(_field(family.value, 0, "value") if expires else family.value)
    if kind == MAP_STATE:
        grouping, map_key = (columns_of(_field(family.key, i, part)) for i, part in enumerate(("key", "userKey")))
        return StateVariable(name, kind, expires, grouping, map_key, value)
    return StateVariable(name, kind, expires, columns_of(family.key), (INDEX,) if kind == LIST_STATE else (), value)


def _field(struct_type: dict[str, Any], index: int, name: str) -> dict[str, Any]:
    field = struct_type["fields"][index]
    if field["name"] != name:
        raise ValueError(f"a field {name} was expected, {field['name']} is there")
    type_: dict[str, Any] = field["type"]
    return type_


def _struct(columns: tuple[Column, ...], name: str = "struct") -> Column:
    """One struct column with these columns as fields."""
    fields = [{"name": c.name, "type": json.loads(c.type) if c.type.startswith("{") else c.type} for c in columns]
    return Column(name, json.dumps({"type": "struct", "fields": fields}))
