"""The declared fields of a folder's views: which events an append refuses, and why."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stateside.core.errors import EventRefused, StateError
from stateside.journal import Event
from stateside.journal.payload import DeclaredFields, ViewFields, keep_fields, spark_name

SALES = ViewFields("amount int, at timestamp", pa.schema([("amount", pa.int32()), ("at", pa.timestamp("us", "UTC"))]))
ALL = ViewFields("country string", pa.schema([("country", pa.string())]))


def sale(payload: Any, type_: str = "sale", tags: tuple[str, ...] = ()) -> Event:
    return Event("s", "emma", type_, 0, payload, tags)


def declared(path: Path, **views: ViewFields) -> DeclaredFields:
    keep_fields(path, views)
    return DeclaredFields(path)


def test_before_the_first_run_nothing_is_known_and_everything_fits(tmp_path: Path) -> None:
    assert DeclaredFields(tmp_path / "fields.json").faults([sale({"amount": "much"})]) == {}


def test_an_event_must_fit_the_fields_of_every_view_that_reads_it(tmp_path: Path) -> None:
    rules = declared(
        tmp_path / "fields.json",
        sales=ViewFields(SALES.fields, SALES.schema, types=("sale",), tags=("web", "shop")),
        countries=ALL,
    )
    faults = rules.faults(
        [
            sale({"amount": "much"}, tags=("web",)),
            sale({"amount": "much"}),
            sale({"amount": "much"}, "note", ("web",)),
            sale({"amount": 1, "country": 49}, tags=("shop", "x")),
            sale(b"\x00"),
            sale({"amount": 1, "at": "2026-01-31T12:00:00Z", "other": {"deep": [1]}}, tags=("web",)),
        ]
    )
    assert faults == {
        0: "the field 'amount' is \"much\", which is no int",
        3: "the field 'country' is 49, which is no string",
    }


def test_the_first_misfit_is_named_and_a_changed_file_counts_at_once(tmp_path: Path) -> None:
    rules = declared(tmp_path / "fields.json", sales=SALES)
    with pytest.raises(EventRefused, match="Event 1 of the batch, 's', was refused: the field 'at' is 5"):
        rules.check([sale({}), sale({"at": 5})])
    keep_fields(tmp_path / "fields.json", {"countries": ALL})
    rules.check([sale({"at": 5})])


def test_a_damaged_file_is_an_error_that_says_how_to_mend_it(tmp_path: Path) -> None:
    (tmp_path / "fields.json").write_text('{"views": {"a": {}}}')
    with pytest.raises(StateError, match="Delete the file: the next run"):
        DeclaredFields(tmp_path / "fields.json").faults([sale({})])


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        *((pa.int8(), "tinyint"), (pa.int64(), "bigint"), (pa.bool_(), "boolean"), (pa.date32(), "date")),
        *((pa.decimal128(9, 2), "decimal(9,2)"), (pa.list_(pa.float64()), "array<double>")),
        (pa.struct([("a", pa.timestamp("us", "UTC"))]), "struct<a:timestamp>"),
    ],
    ids=str,
)
def test_types_are_named_as_they_are_declared(type_: pa.DataType, name: str) -> None:
    assert spark_name(type_) == name
