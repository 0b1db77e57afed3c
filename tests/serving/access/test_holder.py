"""Roles open routes, scopes say which rows there are."""

from __future__ import annotations

from itertools import product

import pytest

from stateside.core.errors import AccessDenied
from stateside.serving.access.guard import NOBODY
from stateside.serving.access.principal import OPERATOR, ROLES, Principal, Role, customer
from stateside.serving.web.route import Route


async def _nothing(request: object) -> object:
    raise AssertionError


def route(reach: str) -> Route:
    return Route("/v1/customers/{customer}/bill", _nothing, "", reach)  # type: ignore[arg-type]


def lets_in(reach: str, holder: Principal, of: str = "emma") -> bool:
    try:
        route(reach).check(holder, (of,))
        return True
    except AccessDenied:
        return False


REACHES = ("operator", "read", "sql", "append", "customer", "own", "anyone")
OPENED: dict[Role, set[str]] = {
    "operator": set(REACHES),
    "read": {"read", "customer", "own", "anyone"},
    "sql": {"sql", "anyone"},
    "append": {"append", "anyone"},
}


@pytest.mark.parametrize(("role", "reach"), [*product(ROLES, REACHES)])
def test_a_role_opens_what_it_is_for_and_nothing_else(role: Role, reach: str) -> None:
    holder = OPERATOR if role == "operator" else Principal("somebody", frozenset({role}))
    assert lets_in(reach, holder) == (reach in OPENED[role])


@pytest.mark.parametrize("reach", REACHES)
def test_nobody_is_let_in_only_where_anyone_is(reach: str) -> None:
    assert lets_in(reach, NOBODY) == (reach == "anyone")


READ = frozenset[Role]({"read"})
SCOPED = [
    (customer("page", "emma"), True),
    (customer("page", "ben"), False),
    (customer("page", "Emma"), False),
    (customer("page", ""), False),
    (Principal("all", READ), True),
    (Principal("austria", READ, where={"country": "AT"}), False),
    (Principal("part", READ, where={"customer": "emma", "country": "AT"}), False),
    (Principal("views", READ, views=frozenset({"bill"})), False),
    (Principal("both", READ, views=frozenset({"bill"}), where={"customer": "emma"}), False),
]


@pytest.mark.parametrize(("holder", "allowed"), SCOPED)
def test_a_customer_s_data_is_reached_by_who_may_have_all_of_it(holder: Principal, allowed: bool) -> None:
    assert lets_in("customer", holder) == allowed


@pytest.mark.parametrize(
    ("holder", "view", "columns", "expected"),
    [
        (OPERATOR, "orders", ["id"], {}),
        (Principal("all", READ), "orders", ["id"], {}),
        (customer("page", "emma"), "bill", ["customer", "type"], {"customer": "emma"}),
        (customer("page", "emma"), "orders", ["id"], None),
        (Principal("v", READ, frozenset({"bill"})), "bill", ["customer"], {}),
        (Principal("v", READ, frozenset({"bill"})), "orders", ["customer"], None),
        (Principal("v", READ, frozenset({"bill"}), {"customer": "emma"}), "orders", ["customer"], None),
        (Principal("v", READ, None, {"a": "1", "b": "2"}), "x", ["a", "b", "c"], {"a": "1", "b": "2"}),
        (Principal("v", READ, None, {"a": "1", "b": "2"}), "x", ["a", "c"], None),
    ],
)
def test_rows_are_those_of_the_scope_or_the_view_is_refused(
    holder: Principal, view: str, columns: list[str], expected: dict[str, str] | None
) -> None:
    if expected is None:
        with pytest.raises(AccessDenied):
            holder.rows_of(view, columns)
    else:
        assert holder.rows_of(view, columns) == expected
