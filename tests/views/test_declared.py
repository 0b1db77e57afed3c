"""Declarations: what they make of inferred views, and that every mistake is told with what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateside.core.errors import SettingInvalid, StatesideError
from stateside.core.storage import Storage
from stateside.views.catalogue import Catalogue
from stateside.views.declaration_file import DECLARABLE, Declarations
from stateside.views.inference import Inferred, infer
from tests.written import WORDS, Written, WrittenOperator

KEY = [("customer", "string"), ("country", "string")]
VALUE = [("sum", "double"), ("count", "long"), ("sum", "decimal(20,2)"), ("isEmpty", "boolean"), ("max", "date")]
ORDERS = WrittenOperator(KEY, VALUE)


@pytest.fixture
def orders(tmp_path: Path) -> Inferred:
    """A query `orders` with the views orders-0 (orders) and orders-1 (words), and orders-2, which is refused."""
    Written(tmp_path / "orders", ORDERS, WORDS, WrittenOperator([], [("value", "long")], "globalLimit")).batch()
    found = infer(Storage.at(tmp_path / "orders"), "orders")
    assert found is not None
    return found


def declare(text: str) -> Declarations:
    return Declarations.parse(text.encode(), "orders.toml")


def applied(text: str, orders: Inferred) -> Catalogue:
    """The first view as it is declared."""
    declarations = declare(text)
    declarations.check(orders)
    return declarations.apply(orders).views[0]


def test_without_declarations_views_stay_as_they_are(orders: Inferred) -> None:
    assert declare("").apply(orders) == orders


def test_a_view_gets_its_name_its_key_order_and_its_columns_names(orders: Inferred) -> None:
    view = applied(
        """
        [views.orders-0]
        name = "spending"
        key = ["country", "customer"]
        rename = { country = "land", max = "newest" }
        """,
        orders,
    )
    assert view.view == "spending"
    assert [(column.name, column.stored.index) for column in view.key] == [("land", 1), ("customer", 0)]
    assert [column.name for column in view.columns] == ["sum", "count", "sum_2", "isEmpty", "newest"]


def test_a_column_is_made_of_buffers_which_are_not_shown_any_more(orders: Inferred) -> None:
    view = applied(
        """
        [views.orders-0.columns]
        paid = { decimal_sum = ["sum_2", "isEmpty"] }
        mean = { average = ["sum", "count"] }
        """,
        orders,
    )
    assert [(column.name, column.type, column.aggregate) for column in view.columns] == [
        ("mean", "double", "average"),
        ("paid", "decimal(20,2)", "decimal_sum"),
        ("max", "date", "value"),
    ]


def test_every_aggregate_that_a_plan_can_have_may_be_declared(orders: Inferred) -> None:
    text = '[views.orders-0.columns]\nlatest = { max_by = ["sum", "max"] }\nfirst = { first = ["sum_2", "isEmpty"] }\n'
    text += 'flags = { bit_and = "count" }\n'
    made = {column.name: (column.type, column.aggregate) for column in applied(text, orders).columns}
    assert made.items() >= {"latest": ("double", "max_by"), "first": ("decimal(20,2)", "first")}.items()
    assert made["flags"] == ("long", "bit_and")
    assert not {"value", "unscaled_sum", "unscaled_average"} & DECLARABLE.keys()


def test_two_columns_may_be_made_of_one_buffer(orders: Inferred) -> None:
    text = '[views.orders-0.columns]\norders = { count = "count" }\nmean = { average = ["sum", "count"] }\n'
    assert {column.name for column in applied(text, orders).columns} >= {"orders", "mean"}


def test_rollups_are_told_by_the_names_before_and_have_those_after(orders: Inferred) -> None:
    view = applied(
        """
        [views.orders-0]
        rollups = [["country"], []]
        rename = { country = "land" }
        columns.orders = { count = ["count"] }
        """,
        orders,
    )
    assert view.rollups == (("land",), ())


def test_only_some_views_are_served(orders: Inferred) -> None:
    found = declare('serve = ["orders-1"]').apply(orders)
    assert [view.view for view in found.views] == ["orders-1"]
    assert found.refused == ()


WRONG = [
    ("serve = [", "no TOML"),
    ("port = 1", "There are: serve, views"),
    ('serve = "orders-0"', "serve is no list of names"),
    ("views = 3", "[views.NAME]"),
    ("[views]\norders-0 = 3", "[views.NAME]"),
    ("[views.orders-0]\ncolour = 1", "There are: name, key, rename, rollups, columns"),
    ("[views.orders-0]\nname = 1", "views.orders-0.name is no text"),
    ("[views.orders-0]\nkey = 1", "views.orders-0.key is no list of names"),
    ("[views.orders-0]\nrename = ['a']", "views.orders-0.rename has no names"),
    ("[views.orders-0]\nrollups = 'country'", "views.orders-0.rollups is no list"),
    ("[views.orders-0]\nrollups = ['country']", "views.orders-0.rollups is no list of names"),
    ("[views.orders-0]\ncolumns = 1", "views.orders-0.columns is no table"),
    ("[views.orders-0.columns]\nx = 1", "there are: count, sum,"),
    ("[views.orders-0.columns]\nx = { median = ['sum'] }", "there are: count, sum,"),
    ("[views.orders-0.columns]\nx = { sum = ['sum'], count = ['count'] }", "there are: count, sum,"),
    ("[views.orders-0.columns]\nx = { sum = ['sum'], type = 3 }", "x.type is no text"),
]
UNFIT = [
    ('serve = ["order"]', "There are: orders-0, orders-1, orders-2"),
    ("[views.order]", "There are: orders-0, orders-1, orders-2"),
    ("[views.orders-0]\nname = 'a/b'", "Use letters, digits, _ and -"),
    ("[views.orders-0]\nname = 'orders-1'", "would be called 'orders-1'"),
    ("[views.orders-0]\nkey = ['customer']", "['customer', 'country']"),
    ("[views.orders-0]\nkey = ['customer', 'customer']", "['customer', 'country']"),
    ("[views.orders-0]\nrename = { total = 'x' }", "Its columns are: customer, country, sum, count, sum_2"),
    ("[views.orders-0]\nrename = { sum = 'count' }", "two of its columns would be called 'count'"),
    ("[views.orders-0]\nrollups = [['land']]", "Its key has ['customer', 'country']"),
    ("[views.orders-0]\nrollups = [['country']]", "can be added up"),
    ("[views.orders-0.columns]\nx = { sum = ['total'] }", "Its buffers are: sum, count, sum_2, isEmpty, max"),
    ("[views.orders-0.columns]\nx = { average = ['count', 'sum'] }", "For average it takes: a double, a long"),
    ("[views.orders-0.columns]\nx = { average = ['sum'] }", "For average it takes: a double, a long"),
    ("[views.orders-0.columns]\nx = { sum = ['max'] }", "a long or a double"),
    ("[views.orders-0.columns]\nx = { bit_or = ['max'] }", "For bit_or it takes: a byte, short, integer or long"),
    ("[views.orders-0.columns]\nx = { bit_xor = ['sum'] }", "For bit_xor it takes: a byte, short, integer or long"),
    ("[views.orders-0.columns]\nx = { sum = ['sum'], type = 'long' }", "Leave it out"),
    ("[views.orders-0.columns]\nx = { decimal_average = ['sum_2', 'count'] }", 'Add type = "decimal(14,6)"'),
]


@pytest.mark.parametrize(("text", "told"), WRONG, ids=[text for text, _ in WRONG])
def test_what_is_no_declaration_is_told_with_what_there_is(text: str, told: str) -> None:
    with pytest.raises(SettingInvalid) as error:
        declare(text)
    assert told in str(error.value)
    assert error.value.where == "orders.toml"


@pytest.mark.parametrize(("text", "told"), UNFIT, ids=[text for text, _ in UNFIT])
def test_what_does_not_fit_the_views_is_told_with_what_there_is(text: str, told: str, orders: Inferred) -> None:
    with pytest.raises(StatesideError) as error:
        declare(text).check(orders)
    assert told in str(error.value)


@pytest.mark.parametrize("text", [text for text, _ in UNFIT if "order]" not in text and '"order"' not in text])
def test_a_view_that_does_not_fit_its_declaration_is_refused_and_others_are_served(text: str, orders: Inferred) -> None:
    found = declare(text).apply(orders)
    assert len(found.views) == 1
    assert len(found.refused) == 2


def test_a_view_that_the_query_has_not_is_told_and_others_are_served(orders: Inferred) -> None:
    found = declare("[views.order]").apply(orders)
    assert [view.view for view in found.views] == ["orders-0", "orders-1"]
    assert [refusal.view for refusal in found.refused] == ["orders-2", "order"]


def test_the_type_of_an_average_of_decimals_is_declared(orders: Inferred) -> None:
    text = "[views.orders-0.columns]\nx = { decimal_average = ['sum_2', 'count'], type = 'decimal(14,6)' }"
    assert applied(text, orders).columns[1].type == "decimal(14,6)"
