"""Answers as frames, events out of lines, questions as they are sent. Without servers."""

from __future__ import annotations

import builtins
import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import RequestInvalid, SetupError
from stateside.journal import Event
from stateside.replica.keys import KeyCodec
from stateside.serving.clients.answers import SqlAnswer, Table
from stateside.serving.clients.requests import appended, text
from stateside.serving.clients.shards import by_column, by_key, value_of
from stateside.serving.clients.transport import Lines
from stateside.serving.rows.values import renderer
from stateside.spark_state.types import parse_type
from tests.rows import VALUES, WINDOW, array_of, map_of, struct_of

KEYABLE = [
    "string",
    "long",
    "boolean",
    "double",
    "date",
    "timestamp",
    "decimal(9,2)",
    "decimal(38,10)",
    "binary",
    WINDOW,
]


def shown(type_: str, value: Any) -> Any:
    """As an answer has it, after its way over the wire."""
    return json.loads(json.dumps(renderer(parse_type(type_))(value)))


def fitting(type_: str) -> st.SearchStrategy[Any]:
    """Values that JSON can show: dates and times of years that Python knows."""
    day_us = 86_400_000_000
    times = st.integers(-700_000 * day_us, 2_900_000 * day_us)
    limited = {"date": st.integers(-700_000, 2_900_000), "timestamp": times, "timestamp_ntz": times}
    if type_ == WINDOW:
        return st.tuples(times, times)
    return limited.get(type_, VALUES[type_].map(stored))


def stored(value: Any) -> Any:
    """As Spark stores it in a key: every NaN as the same one."""
    return math.nan if isinstance(value, float) and math.isnan(value) else value


@given(st.sampled_from(KEYABLE).flatmap(lambda t: st.tuples(st.just(t), st.lists(st.none() | fitting(t), max_size=8))))
def test_rows_stand_in_the_order_of_their_keys_whatever_these_look_like_in_an_answer(
    given_: tuple[str, list[Any]],
) -> None:
    type_, values = given_
    codec, rank = KeyCodec([type_]), by_key([("k", type_)])
    encoded = sorted(codec.encode([value]) for value in values)
    assert [rank(row) for row in sorted(({"k": shown(type_, v)} for v in values), key=rank)] == encoded


@given(st.sampled_from(KEYABLE).flatmap(lambda t: st.tuples(st.just(t), st.none() | fitting(t))))
def test_a_value_is_read_back_as_it_was(given_: tuple[str, Any]) -> None:
    type_, value = given_
    codec = KeyCodec([type_])
    assert codec.encode([value_of("k", parse_type(type_), shown(type_, value))]) == codec.encode([value])


def test_an_order_by_a_column_is_that_of_servers() -> None:
    rows: list[dict[str, Any]] = [
        {"k": str(number), "v": value, "w": {"start": 9 - number}}
        for number, value in enumerate([3.0, None, "NaN", -1.0, 3.0])
    ]
    columns = [("k", "string"), ("v", "double"), ("w", struct_of(start="long"))]

    def order(by: str) -> str:
        return "".join(row["k"] for row in sorted(rows, key=by_column(by, columns, columns[:1])))

    assert order("v") == "13042"
    assert order("-v") == "20431"
    assert order("w.start") == "43210"
    with pytest.raises(RequestInvalid, match="no column 'x' to order by"):
        order("x")


def test_every_type_has_its_own_in_a_frame() -> None:
    types = {
        "s": "string",
        "n": "long",
        "d": "decimal(10,2)",
        "day": "date",
        "at": "timestamp",
        "local": "timestamp_ntz",
        "raw": "binary",
        "x": "double",
        "w": WINDOW,
        "list": array_of("short"),
        "map": map_of("string", "decimal(9,2)"),
    }
    values = [
        "a",
        5,
        Decimal("1.50"),
        20_000,
        1_000_001,
        2,
        b"\x00",
        float("nan"),
        (0, 1),
        (1, None),
        (("k", Decimal("2.00")),),
    ]
    rows = [{name: shown(type_, value) for (name, type_), value in zip(types.items(), values, strict=True)}]
    rows.append(dict.fromkeys(types))
    table = Table(rows, types).to_arrow()
    assert [str(type_) for type_ in table.schema.types][:8] == [
        "string",
        "int64",
        "decimal128(10, 2)",
        "date32[day]",
        "timestamp[us, tz=UTC]",
        "timestamp[us]",
        "binary",
        "double",
    ]
    first = table.slice(0, 1).to_pylist()[0]
    assert first["at"] == datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)
    assert first["w"]["end"] == datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert (first["day"], first["d"], first["raw"], first["list"]) == (
        date(2024, 10, 4),
        Decimal("1.50"),
        b"\x00",
        [1, None],
    )
    assert first["map"] == [("k", Decimal("2.00"))]
    assert table.slice(1).to_pylist() == [dict.fromkeys(types)]
    assert Table([], types).to_arrow().schema == table.schema
    assert Table([{"a": 1}], {}).to_arrow().schema == pa.schema([("a", pa.int64())])


def test_without_polars_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def no_polars(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "polars":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_polars)
    with pytest.raises(SetupError, match=r"polars is not installed\. Install it"):
        Table([{"a": 1}]).to_polars()


def test_a_statement_s_columns_have_types_and_names_of_their_own() -> None:
    columns = [("sum", "HUGEINT"), ("sum", "DECIMAL(10,2)"), ("at", "TIMESTAMP WITH TIME ZONE"), ("x", "INTERVAL")]
    document = {
        "stamps": [],
        "columns": [{"name": name, "type": type_} for name, type_ in columns],
        "rows": [[5, "1.50", "2026-01-01T00:00:00Z", "P1D"]],
    }
    answer = SqlAnswer.of(document)
    assert list(answer.rows[0]) == ["sum", "sum_2", "at", "x"]
    assert [str(type_) for type_ in answer.to_arrow().schema.types] == [
        "decimal128(38, 0)",
        "decimal128(10, 2)",
        "timestamp[us, tz=UTC]",
        "string",
    ]


def test_lines_become_events() -> None:
    lines = Lines()
    stream = "retry: 1000\n\n: still here\n\nevent: changes\nid: 7-ab\ndata: {\ndata: }\n\n"
    stream += "event: end\ndata:x\n\nevent: empty\n\n"
    events = [event for line in stream.split("\n") if (event := lines.take(line))]
    assert [(event.kind, event.data, event.id) for event in events] == [("changes", "{\n}", "7-ab"), ("end", "x", None)]


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        ("a/b", "a/b"),
        (5, "5"),
        (True, "true"),
        (Decimal("1E+2"), "100"),
        (date(2026, 1, 31), "2026-01-31"),
        (datetime(2026, 1, 31, 1, tzinfo=timezone(timedelta(hours=1))), "2026-01-31T00:00:00Z"),
        (datetime(2026, 1, 31, 1), "2026-01-31T01:00:00"),
    ],
)
def test_parts_of_keys_are_sent_as_servers_read_them(part: Any, sent: str) -> None:
    assert text(part) == sent


def test_every_event_that_is_appended_has_an_id_that_stays_the_same_when_it_is_sent_again() -> None:
    ((count, ask),) = appended([{"entity": "emma", "type": "order"}, {"id": "mine", "entity": "ben", "type": "order"}])
    assert count == 2
    own, mine = json.loads(ask.body or b"")["events"]
    assert own["id"].startswith("@emma/") and len(own["id"]) == 42, "as a token that is scoped to emma needs it"
    assert mine["id"] == "mine"
    assert ask.repeatable, "the very same bytes are sent again"
    event = Event("1", "emma", "order", 5, {"n": 1}, ("tag",))
    ((_, ask),) = appended([event])
    (sent,) = json.loads(ask.body or b"")["events"]
    assert sent == {"id": "1", "entity": "emma", "type": "order", "time_us": 5, "payload": {"n": 1}, "tags": ["tag"]}
    with pytest.raises(RequestInvalid, match="no event to append"):
        appended([])
