"""Rollups as they are declared: what cannot be a coarser key is refused before anything runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import stateside
from stateside.core.errors import ViewInvalid
from stateside.views.aggregates import check_rollups
from stateside.views.catalogue import Catalogue, KeyColumn, StateColumn, ViewColumn

COUNTRY = KeyColumn("country", "string", StateColumn(0, "country", "string"), "country")
SESSION = KeyColumn(
    "session", "…", StateColumn(1, "sessionStartTime", "timestamp"), "…", StateColumn(1, "session", "…")
)
COUNT = ViewColumn("orders", "long", "count", (StateColumn(0, "count", "long"),), "count(1)")
LEAST = ViewColumn("least", "long", "min", (StateColumn(1, "min", "long"),), "min(amount)")
CATALOGUE = Catalogue("shop", "spending", 0, (COUNTRY, SESSION), (COUNT, LEAST), "session")


def declare(rollups: Any, key: tuple[str, ...] = ("customer", "country")) -> tuple[tuple[str, ...], ...]:
    app = stateside.App("shop")
    app.view(key=key, rollups=rollups, name="spending")(lambda events: events)
    return app.views["spending"].rollups


def test_rollups_are_some_of_the_key_s_columns_in_any_order_or_none_of_them() -> None:
    assert declare(()) == ()
    assert declare([["country"], ["customer"], []]) == (("country",), ("customer",), ())
    assert declare([["c", "a"], ["a", "c"]], ("a", "b", "c")) == (("c", "a"), ("a", "c"))


@pytest.mark.parametrize(
    ("rollups", "reason"),
    [
        (["country"], "not a list of lists of columns"),
        ("country", "not a list of lists of columns"),
        ([["city"]], r"has 'city', which its key does not. Its key has \['customer', 'country'\]"),
        ([["country", "country"]], "has a column twice"),
        ([["country", "customer"]], "has all columns of its key"),
        ([["country"], ["customer"], ["country"]], "is there twice"),
        ([[]] * 17, "17 rollups, more than 16"),
    ],
)
def test_what_is_no_coarser_key_is_refused(rollups: Any, reason: str) -> None:
    with pytest.raises(ViewInvalid, match=reason):
        declare(rollups)


def test_a_column_that_could_not_be_asked_by_is_refused() -> None:
    for name in ("a,b", "a/b"):
        with pytest.raises(ViewInvalid, match="has a comma or a slash"):
            declare([[name]], (name, "country"))


def test_a_view_without_counts_sums_and_averages_has_no_rollups() -> None:
    check_rollups(replace(CATALOGUE, rollups=(("country",), ())))
    check_rollups(replace(CATALOGUE, columns=(LEAST,)))
    with pytest.raises(ViewInvalid, match=r"none of its columns \['least'\] can be added up and taken away again"):
        check_rollups(replace(CATALOGUE, columns=(LEAST,), rollups=(("country",),)))


def test_rollups_are_neither_by_session_windows_nor_of_state_variables() -> None:
    with pytest.raises(ViewInvalid, match="has the session window 'session', which no two rows have in common"):
        check_rollups(replace(CATALOGUE, rollups=(("session",),)))
    with pytest.raises(ViewInvalid, match="rollups of a state variable"):
        check_rollups(replace(CATALOGUE, kind="state-variable", rollups=(("country",),)))
