"""The catalogue: read back as written, and checked against the state it belongs to."""

from dataclasses import replace
from pathlib import Path

import pytest

from stateside.checkpoint.catalogue import Catalogue, ViewColumn
from stateside.checkpoint.schema import Column, StateSchema
from stateside.errors import CheckpointInvalid, ViewInvalid

CATALOGUE = Catalogue(
    application="shop",
    view="spending",
    operator=0,
    key=(ViewColumn("customer", "string", 1, "customer"), ViewColumn("country", "string", 0, "country")),
    columns=(ViewColumn("total", "long", 0, "sum(amount)"),),
)
SCHEMA = StateSchema(
    key=(Column("country", "string"), Column("customer", "string")),
    value=(Column("sum(amount)", "long"), Column("count", "long")),
)


def test_a_catalogue_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "catalogue.json").write_bytes(CATALOGUE.as_json())
    assert Catalogue.load(tmp_path / "catalogue.json") == CATALOGUE


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        CATALOGUE.as_json().replace(b'"version": 1', b'"version": 2'),
        CATALOGUE.as_json().replace(b'"operator"', b'"operators"'),
        CATALOGUE.as_json().replace(b'"index"', b'"place"'),
        CATALOGUE.as_json()[:-10],
    ],
)
def test_a_catalogue_that_cannot_be_read_is_told_with_its_file(content: bytes) -> None:
    with pytest.raises(CheckpointInvalid, match="catalogue cannot be read") as damaged:
        Catalogue.parse(content, "views/spending/catalogue.json")
    assert damaged.value.where == "views/spending/catalogue.json"


def test_a_catalogue_fits_the_state_that_it_was_derived_for() -> None:
    CATALOGUE.check(SCHEMA)


@pytest.mark.parametrize(
    "schema",
    [
        replace(SCHEMA, key=SCHEMA.key[:1]),
        replace(SCHEMA, key=(Column("country", "string"), Column("client", "string"))),
        replace(SCHEMA, key=(Column("country", "string"), Column("customer", "long"))),
        replace(SCHEMA, value=()),
        replace(SCHEMA, value=(Column("sum(amount)", "double"),)),
    ],
    ids=["a key column less", "another key column", "another key type", "no value", "another value type"],
)
def test_a_state_of_another_query_is_refused_rather_than_served_wrongly(schema: StateSchema) -> None:
    with pytest.raises(ViewInvalid, match="'spending' does not fit its state"):
        CATALOGUE.check(schema)


def test_a_buffer_may_have_another_name_than_its_column() -> None:
    CATALOGUE.check(replace(SCHEMA, value=(Column("buf#17", "long"),)))
