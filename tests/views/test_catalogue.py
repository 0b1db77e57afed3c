"""The catalogue: read back as written, and checked against the state it belongs to."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stateside.core.errors import CheckpointInvalid, ViewInvalid
from stateside.spark_state.types import Column, StateSchema
from stateside.views.catalogue import VERSION, Catalogue, Computed, KeyColumn, StateColumn, ViewColumn, Window

BUCKET = '{"type": "struct", "fields": [{"name": "start", "type": "timestamp"}, {"name": "end", "type": "timestamp"}]}'

CATALOGUE = Catalogue(
    application="shop",
    view="spending",
    operator=0,
    key=(
        KeyColumn("customer", "string", StateColumn(1, "customer", "string"), "customer"),
        KeyColumn("window", BUCKET, StateColumn(0, "window", BUCKET), "window"),
    ),
    columns=(
        ViewColumn("total", "long", "sum", (StateColumn(0, "sum", "long"),), "sum(amount)"),
        ViewColumn(
            "mean",
            "double",
            "average",
            (StateColumn(1, "sum", "double"), StateColumn(2, "count", "long")),
            "avg(amount)",
        ),
    ),
    window=Window("window", 3_600_000_000, 0, None),
)
SCHEMA = StateSchema(
    key=(
        Column("window", BUCKET.replace('"timestamp"}', '"timestamp", "nullable": true}')),
        Column("customer", "string"),
    ),
    value=(Column("sum", "long"), Column("sum", "double"), Column("count", "long")),
)
SESSIONS = replace(
    CATALOGUE,
    kind="session",
    window=None,
    key=(
        KeyColumn("user", "string", StateColumn(0, "user", "string"), "user"),
        KeyColumn(
            "visit",
            BUCKET,
            StateColumn(1, "sessionStartTime", "timestamp"),
            "…",
            StateColumn(1, "session_window", BUCKET),
        ),
    ),
    columns=(ViewColumn("pages", "long", "count", (StateColumn(2, "count", "long"),), "count(1)"),),
)
SESSION_SCHEMA = StateSchema(
    key=(Column("user", "string"), Column("sessionStartTime", "timestamp")),
    value=(Column("user", "string"), Column("session_window", BUCKET), Column("count", "long")),
)


COMPUTED = replace(CATALOGUE, computed=(Computed("price", of="total", by=("customer",)),))

ARCHIVED = replace(CATALOGUE, archive="hours")
ALL = {"aggregation": CATALOGUE, "session": SESSIONS, "computed": COMPUTED, "archived": ARCHIVED}


@pytest.mark.parametrize("catalogue", ALL.values(), ids=ALL)
def test_a_catalogue_is_read_back_as_it_was_written(tmp_path: Path, catalogue: Catalogue) -> None:
    (tmp_path / "catalogue.json").write_bytes(catalogue.as_json())
    assert Catalogue.load(tmp_path / "catalogue.json") == catalogue


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        CATALOGUE.as_json().replace(b'"operator"', b'"operators"'),
        CATALOGUE.as_json().replace(b'"index"', b'"place"'),
        CATALOGUE.as_json().replace(b'"whole"', b'"half"'),
        CATALOGUE.as_json()[:-10],
    ],
)
def test_a_catalogue_that_cannot_be_read_is_told_with_its_file(content: bytes) -> None:
    with pytest.raises(CheckpointInvalid, match="catalogue cannot be read") as damaged:
        Catalogue.parse(content, "views/spending/catalogue.json")
    assert damaged.value.where == "views/spending/catalogue.json"


def test_a_catalogue_of_another_version_is_told_apart_from_a_damaged_one() -> None:
    content = CATALOGUE.as_json().replace(f'"version": {VERSION}'.encode(), b'"version": 1')
    with pytest.raises(CheckpointInvalid, match="it has version 1, this Stateside writes") as older:
        Catalogue.parse(content, "catalogue.json")
    assert "new folder" in str(older.value.next_step)


def test_a_catalogue_from_before_there_were_computed_columns_has_none() -> None:
    document = json.loads(CATALOGUE.as_json())
    del document["computed"]
    assert Catalogue.parse(json.dumps(document | {"version": 2}).encode(), "catalogue.json") == CATALOGUE


def test_a_catalogue_from_before_it_knew_of_archives_has_none() -> None:
    document = json.loads(ARCHIVED.as_json())
    del document["archive"]
    assert Catalogue.parse(json.dumps(document | {"version": 3}).encode(), "catalogue.json") == CATALOGUE


def test_a_catalogue_fits_the_state_that_it_was_derived_for() -> None:
    CATALOGUE.check(SCHEMA)
    SESSIONS.check(SESSION_SCHEMA)


@pytest.mark.parametrize(
    "schema",
    [
        replace(SCHEMA, key=SCHEMA.key[:1]),
        replace(SCHEMA, key=(SCHEMA.key[0], Column("client", "string"))),
        replace(SCHEMA, key=(SCHEMA.key[0], Column("customer", "long"))),
        replace(SCHEMA, key=(Column("window", BUCKET.replace("end", "until")), SCHEMA.key[1])),
        replace(SCHEMA, key=(*SCHEMA.key, Column("country", "string"))),
        replace(SCHEMA, value=()),
        replace(SCHEMA, value=(Column("sum", "double"), *SCHEMA.value[1:])),
        replace(SCHEMA, value=(Column("max", "long"), *SCHEMA.value[1:])),
        replace(SCHEMA, value=(*SCHEMA.value, Column("count", "long"))),
    ],
    ids=[
        "a key column less",
        "another key column",
        "another key type",
        "another field in a key",
        "a key column more",
        "no value",
        "another type of buffer",
        "another buffer of the same type",
        "a buffer more",
    ],
)
def test_a_state_of_another_query_is_refused_rather_than_served_wrongly(schema: StateSchema) -> None:
    with pytest.raises(ViewInvalid, match="'spending' does not fit its state"):
        CATALOGUE.check(schema)


@pytest.mark.parametrize(
    "schema",
    [
        replace(SESSION_SCHEMA, key=(Column("user", "string"), Column("start", "timestamp"))),
        replace(SESSION_SCHEMA, value=SESSION_SCHEMA.value[::-1]),
        SCHEMA,
    ],
    ids=["another start", "another order", "no sessions"],
)
def test_a_state_that_holds_no_such_sessions_is_refused(schema: StateSchema) -> None:
    with pytest.raises(ViewInvalid, match="does not fit its state"):
        SESSIONS.check(schema)
