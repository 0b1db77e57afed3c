"""The catalogue of a view of a state variable: completed from the checkpoint, or refused with the reason."""

from collections.abc import Callable
from typing import Any

import pytest

from stateside.core.errors import ViewInvalid
from stateside.core.storage import Storage
from stateside.views.catalogue import Catalogue, KeyColumn, StateColumn
from stateside.views.state_catalogue import check_state, completed

from .test_state_variables import (
    FRESH,
    GROUPING,
    KINDS,
    NO_PREFIX,
    PREFIX,
    SCHEMA,
    TIMERS,
    TOTAL,
    Family,
    metadata,
    schema_file,
)
from .test_state_variables import struct_type as struct

Put = Callable[[str, bytes | str], Storage]

REGION = KeyColumn("region", "integer", StateColumn(1, "region", "integer"), "region")
USER = KeyColumn("user", "string", StateColumn(0, "user", "string"), "user")
DOUBLED: Family = ("doubled", GROUPING, struct(("user", "long")), NO_PREFIX)
TIMES: Family = (
    "times",
    GROUPING,
    struct(("value", struct(("expires_ms", "long"))), ("ttlExpirationMs", "long")),
    NO_PREFIX,
)
LISTED: Family = ("listed", GROUPING, struct(("sum", "long")), NO_PREFIX)
NESTED: Family = ("nested", GROUPING, struct(("parts", struct(("a", "long"))), ("price", "decimal(20,2)")), NO_PREFIX)
SPANS: Family = ("spans", GROUPING, struct(("span", "variant")), NO_PREFIX)
TAGS = {"type": "array", "elementType": "string", "containsNull": True}
BY_LIST: Family = (
    "by_list",
    struct(("key", GROUPING), ("userKey", struct(("tags", TAGS)))),
    struct(("sum", "long")),
    PREFIX,
)
DECLARED = (
    *((family[0], "ValueState", False) for family in (TOTAL, DOUBLED, NESTED, SPANS)),
    *((family[0], "ValueState", True) for family in (FRESH, TIMES)),
    ("kinds", "MapState", False),
    ("by_list", "MapState", False),
    (TIMERS[0], "TimerState", False),
    ("listed", "ListState", False),
)


@pytest.fixture
def state(put: Put) -> Storage:
    put(SCHEMA, schema_file(TOTAL, DOUBLED, NESTED, SPANS, FRESH, TIMES, KINDS, BY_LIST, TIMERS, LISTED))
    return put("state/0/_metadata/v2/0", metadata(*DECLARED))


def view(family: str, *key: KeyColumn) -> Catalogue:
    return Catalogue("shop", "spending", 0, key or (REGION, USER), (), kind="state-variable", family=family)


@pytest.mark.parametrize(
    ("family", "key", "columns"),
    [
        ("total", [("region", 1), ("user", 0)], [("sum", 0)]),
        ("fresh", [("region", 1), ("user", 0)], [("sum", 0), ("expires_ms", 1)]),
        ("kinds", [("region", 1), ("user", 0), ("kind", 2)], [("sum", 0)]),
        ("listed", [("region", 1), ("user", 0), ("index", 2)], [("sum", 0)]),
        ("nested", [("region", 1), ("user", 0)], [("parts", 0), ("price", 1)]),
        ("doubled", [("region", 1), ("user", 0)], [("user_2", 0)]),
        ("times", [("region", 1), ("user", 0)], [("expires_ms", 0), ("expires_ms_2", 1)]),
        ("timers", [("region", 1), ("user", 0), ("expires_ms", 2)], []),
    ],
)
def test_a_view_has_its_grouping_columns_those_of_an_entry_and_the_values_fields(
    state: Storage, family: str, key: list[Any], columns: list[Any]
) -> None:
    found = completed(view(family), state)
    assert [(column.name, column.stored.index) for column in found.key] == key
    assert [(column.name, column.buffers[0].index) for column in found.columns] == columns
    assert completed(found, state) == found
    assert Catalogue.parse(found.as_json(), "file") == found


@pytest.mark.parametrize(
    ("catalogue", "reason"),
    [
        (
            view("nothing"),
            "no state variable 'nothing'.*by_list, doubled, fresh, kinds, listed, nested, spans, timers, times, total",
        ),
        (view("spans"), "field 'span' .* cannot be served.*Keep it as a string"),
        (view("by_list"), "field 'tags' .* cannot be served.*Nobody can ask by a list"),
        (
            view("total", KeyColumn("user", "long", StateColumn(0, "user", "long"), "user")),
            "should be user long, the state has user string",
        ),
        (
            view("total", KeyColumn("shop", "string", StateColumn(2, "shop", "string"), "shop")),
            "should be shop string, the state has None",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(state: Storage, catalogue: Catalogue, reason: str) -> None:
    for use in (check_state, completed):
        with pytest.raises(ViewInvalid, match=reason):
            use(catalogue, state)
