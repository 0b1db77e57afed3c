"""Payload fields as columns: a bad payload spoils its own row and no other."""

import json
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import ViewInvalid
from stateside.journal import payload as payload_module
from stateside.journal.payload import check_fields, fitted, mismatch, payload_columns
from tests.sizes import examples

SCHEMA = pa.schema([("amount", pa.int64()), ("country", pa.string()), ("share", pa.float64()), ("paid", pa.bool_())])
NOTHING = dict.fromkeys(SCHEMA.names)


def columns(*payloads: Any, schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    texts = [payload if isinstance(payload, str) else json.dumps(payload) for payload in payloads]
    table = payload_columns(pa.array(texts, pa.string()), schema)
    assert table.schema.equals(schema)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_fields_become_columns_a_row_each() -> None:
    rows = [
        {"amount": 1, "country": "DE", "share": 0.5, "paid": True},
        {"amount": -(2**63), "country": "ÅLAND \u2028 \n", "share": 1e300, "paid": False},
    ]
    assert columns(*rows) == rows


def test_fields_that_a_payload_lacks_are_null_and_other_fields_are_left_out() -> None:
    assert columns({}, {"amount": 1, "note": {"deep": [1]}}) == [NOTHING, NOTHING | {"amount": 1}]
    assert columns({}, {}) == [NOTHING, NOTHING]
    assert columns({"amount": None}) == [NOTHING]


@pytest.mark.parametrize(
    "bad",
    [
        {"amount": "5"},
        {"amount": 1.5},
        {"amount": 2**63},
        {"amount": True},
        {"amount": [1]},
        {"amount": {"micros": 1}},
        {"country": 49},
        {"country": None, "paid": "yes"},
        {"share": "half"},
        '{"amount": 1, "amount": 2}',
        "no JSON",
        "[1]",
        "",
    ],
    ids=str,
)
def test_a_payload_of_other_types_gives_nulls_throughout_and_leaves_its_neighbours_alone(bad: Any) -> None:
    good = {"amount": 7, "country": "DE", "share": 0.25, "paid": False}
    spoilt = bad | {"country": "FR"} if isinstance(bad, dict) and "country" not in bad else bad
    assert columns(good, spoilt, good) == [good, NOTHING, good]


@pytest.mark.parametrize(
    "bad", ['{"amount":"5"}', '{"amount":1.5}', '{"country":49}', '{"paid":0}', '{"share":[]}', "[1]"]
)
def test_many_bad_payloads_among_others_do_not_take_a_step_each(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row by row, a single bad payload made ten thousand take two seconds."""
    parses: list[int] = []
    parse = payload_module._parse

    def counted(payloads: pa.Array, schema: pa.Schema) -> pa.Table:
        parses.append(len(payloads))
        return parse(payloads, schema)

    monkeypatch.setattr(payload_module, "_parse", counted)
    rows = columns(*(bad if number % 100 == 7 else {"amount": number} for number in range(1_000)))
    assert rows == [NOTHING if number % 100 == 7 else NOTHING | {"amount": number} for number in range(1_000)]
    assert parses == [1_000, 1_000]


def test_a_bad_payload_that_only_arrow_knows_is_found_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    parses: list[int] = []
    parse = payload_module._parse

    def counted(payloads: pa.Array, schema: pa.Schema) -> pa.Table:
        parses.append(len(payloads))
        return parse(payloads, schema)

    monkeypatch.setattr(payload_module, "_parse", counted)
    bad = '{"amount": 1, "amount": 2}'
    rows = columns(*(bad if number == 700 else {"amount": number} for number in range(1_000)))
    assert rows == [NOTHING if number == 700 else NOTHING | {"amount": number} for number in range(1_000)]
    assert len(parses) < 25


def test_whole_numbers_are_numbers_where_fractions_are_asked_for() -> None:
    assert columns({"share": 3}) == [NOTHING | {"share": 3.0}]


def test_a_payload_with_line_breaks_is_one_row() -> None:
    assert columns('{"amount":\n1}', '{"amount": 2}') == [NOTHING | {"amount": 1}, NOTHING | {"amount": 2}]


def test_deep_payloads_do_no_harm() -> None:
    deep = '{"amount": 1, "other": ' + "[" * 20_000 + "]" * 20_000 + "}"
    assert columns(deep) == [NOTHING | {"amount": 1}]


def test_without_payloads_or_without_fields_there_is_nothing() -> None:
    assert columns() == []
    assert payload_columns(pa.array(["{}"]), pa.schema([])).num_columns == 0


def test_a_slice_of_payloads_gives_the_rows_of_the_slice() -> None:
    payloads = pa.array([json.dumps({"amount": number}) for number in range(5)]).slice(2, 2)
    assert payload_columns(payloads, SCHEMA)["amount"].to_pylist() == [2, 3]


values = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3) | st.just([1])


@settings(max_examples=examples(60, 300))
@given(st.lists(st.dictionaries(st.sampled_from(["amount", "paid", "other"]), values, max_size=3), max_size=4))
def test_many_payloads_give_what_each_gives_alone(payloads: list[dict[str, Any]]) -> None:
    assert columns(*payloads) == [row for payload in payloads for row in columns(payload)]
    for payload, row in zip(payloads, columns(*payloads), strict=True):
        fits = type(payload.get("amount")) in (int, type(None)) and type(payload.get("paid")) in (bool, type(None))
        assert row == (NOTHING | {name: payload.get(name) for name in ("amount", "paid")} if fits else NOTHING)


def test_dates_are_read_from_iso_texts_nested_ones_too() -> None:
    nested = pa.struct([("born", pa.date32())])
    schema = pa.schema([("day", pa.date32()), ("days", pa.list_(pa.date32())), ("person", nested)])
    day = date(2026, 2, 28)
    good = {"day": "2026-02-28", "days": ["2026-02-28"], "person": {"born": "2026-02-28"}}
    read = {"day": day, "days": [day], "person": {"born": day}}
    nothing = dict.fromkeys(schema.names)
    assert columns(good, {"day": "tomorrow"}, {}, good, schema=schema) == [read, nothing, nothing, read]


@pytest.mark.parametrize(
    "type_", [pa.map_(pa.string(), pa.int64()), pa.list_(pa.duration("us")), pa.duration("us")], ids=str
)
def test_a_field_that_json_cannot_give_is_refused_at_start(type_: pa.DataType) -> None:
    with pytest.raises(ViewInvalid, match=r"'counts' has the type .*cannot be read from a payload"):
        check_fields(pa.schema([("name", pa.string()), ("counts", type_)]))


TYPED = [  # declared, what fits, what does not
    (pa.string(), ["", "ä"], [1, True, [], {}]),
    (pa.int8(), [127, -128], [128, 1.0, "1", True]),
    (pa.int32(), [2**31 - 1], [2**31, 1.5, "1"]),
    (pa.int64(), [2**63 - 1, -(2**63)], [2**63, 5.0, "5", False, [5], {"n": 5}]),
    (pa.float32(), [1, 1.5, -3e38], [1e39, "1.5", True, float("nan")]),
    (pa.float64(), [1, 1.5, 2**70], ["hot", "NaN", True, [1.5], 10**400, float("inf"), float("nan")]),
    (pa.list_(pa.float64()), [[], [None, 1.5]], [[1, 10**400], [float("nan")]]),
    (pa.decimal128(5, 2), [1, 1.25, "1.25", 999.99], [1.255, 1000, "x", True]),
    (pa.bool_(), [True, False], [0, "true"]),
    (pa.timestamp("us", "UTC"), ["2026-01-31T12:00:00Z", "2026-01-31 12:00:00.000001"], [5, "soon", True]),
    (pa.date32(), ["2026-01-31"], ["2026-01-31T12:00:00Z", 5]),
    (pa.list_(pa.int64()), [[], [1, None]], [[1, "2"], 1, {}]),
    (pa.struct([("a", pa.int64())]), [{}, {"a": 1, "b": "x"}, {"a": None}], [{"a": "1"}, [1], "x"]),
    (pa.struct([("a", pa.list_(pa.decimal128(3, 1)))]), [{"a": [1.5, 99]}], [{"a": [1, 100]}]),
]


@pytest.mark.parametrize(("type_", "good", "bad"), TYPED, ids=lambda value: str(value)[:20])
def test_what_fits_a_declared_type_and_what_does_not(type_: pa.DataType, good: list[Any], bad: list[Any]) -> None:
    schema = pa.schema([("before", pa.int64()), ("it", type_)])
    values = [value for pair in zip(bad, bad, strict=True) for value in pair]
    texts = [json.dumps({"before": 1, "it": value}) for value in [None, *good, *values]] + ['{"other": 1}']
    table, misfits = fitted(pa.array(texts), schema)
    first = 1 + len(good)
    assert misfits == list(range(first, first + len(values)))
    assert table["before"].to_pylist() == [1] * first + [None] * len(values) + [None]
    for text in texts[first:-1]:
        assert mismatch(text, schema).startswith("the field 'it' is ")


def test_a_mismatch_says_what_is_wrong_with_what_is_no_object_too() -> None:
    assert "no JSON" in mismatch("{", SCHEMA)
    assert mismatch("[1]", SCHEMA) == "the payload is not one JSON object"
    assert mismatch('{"amount": 1, "amount": 2}', SCHEMA) == "the field 'amount' stands 2 times in the payload"
    assert mismatch(json.dumps({"amount": "x" * 999}), SCHEMA).endswith("xxx…, which is no bigint")


def test_a_number_that_no_type_has_in_a_field_that_is_not_declared_is_not_blamed_on_another_field() -> None:
    text = '{"amount": 1, "other": 1e999}'
    assert fitted(pa.array([text]), SCHEMA)[1] == [0]
    assert mismatch(text, SCHEMA).startswith("the payload cannot be read: ")


@pytest.mark.parametrize("text", ["null", " null", "null null", "{} null", "\ufeff{}", "null {}"])
def test_a_payload_that_is_null_does_not_fit_and_ends_no_process(text: str) -> None:
    """Arrow's reader crashed the process at a null in the place of an object."""
    assert fitted(pa.array(["{}", text, '{"amount": 1}']), SCHEMA)[1] == [1]
    assert fitted(pa.array([text]), SCHEMA)[1] == [0]
    assert mismatch(text, SCHEMA)


def test_a_mismatch_can_be_stored_whatever_text_does_not_fit() -> None:
    """A task that could not write why it refuses an event would fail, and be run again for ever."""
    told = mismatch(r'{"amount": "\ud800 ä"}', SCHEMA)
    assert told.startswith("the payload cannot be read: ")
    assert pa.array([told]).to_pylist() == [told]
