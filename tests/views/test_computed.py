"""Computed columns: what can be one, what their values are, and what a table without an entry leads to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stateside
from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.errors import CheckpointInvalid, ValueOverflow, ViewInvalid
from stateside.views.catalogue import Catalogue, Computed, KeyColumn, StateColumn, ViewColumn
from stateside.views.functions import (
    ComputedColumns,
    KnownFunctions,
    check_computed,
    computed_buffers,
    computed_sum,
    extend_functions,
)

KEY = {"customer": "string", "plan": "string", "day": "date"}
AMOUNT = Computed("amount", of="quantity", by=("plan",))
CATALOGUE = Catalogue(
    "shop",
    "bill",
    0,
    tuple(KeyColumn(name, type_, StateColumn(n, name, type_), name) for n, (name, type_) in enumerate(KEY.items())),
    (
        ViewColumn("events", "long", "count", (StateColumn(0, "count", "long"),), "count(1)"),
        ViewColumn("quantity", "long", "sum", (StateColumn(1, "sum", "long"),), "sum(quantity)"),
        ViewColumn("weight", "double", "sum", (StateColumn(2, "sum", "double"),), "sum(weight)"),
        ViewColumn("most", "long", "max", (StateColumn(3, "max", "long"),), "max(quantity)"),
    ),
    computed=(AMOUNT,),
)
BASIC = Tiers((Tier(0, 0, 1), Tier(100, 9, 2)))


def declare(computed: Any) -> tuple[Computed, ...]:
    app = stateside.App("shop")
    app.view(key=list(KEY), computed=computed, name="bill")(lambda events: events)
    return app.views["bill"].computed


def test_a_computed_column_is_of_one_column_and_by_some_of_the_key() -> None:
    assert declare([]) == ()
    assert declare([stateside.Computed("amount", of="quantity", by=["plan"])]) == (AMOUNT,)  # type: ignore[arg-type]
    check_computed(CATALOGUE)
    check_computed(replace(CATALOGUE, computed=(AMOUNT, Computed("fee", of="events", by=("plan",)))))


@pytest.mark.parametrize(
    ("computed", "reason"),
    [
        (AMOUNT, r"not a list of Computed"),
        (["amount"], r"not a list of Computed"),
        ([Computed("amount", "quantity", "plan")], "is by 'plan', no list of columns"),  # type: ignore[arg-type]
        ([Computed("amount", "quantity", ())], r"is by \(\), no list of columns"),
        ([Computed("amount", "quantity", ("type",))], r"is by 'type', not in its key. Its key has \['customer'"),
        ([AMOUNT, Computed("fee", "events", ("customer",))], "one table of functions: let them be by the same columns"),
    ],
)
def test_what_cannot_be_one_is_refused_when_it_is_declared(computed: Any, reason: str) -> None:
    with pytest.raises(ViewInvalid, match=reason):
        declare(computed)


@pytest.mark.parametrize(
    ("computed", "reason"),
    [
        (replace(AMOUNT, of="total"), "of 'total', which it does not have. Its columns are: events, quantity"),
        (replace(AMOUNT, of="weight"), r"of 'weight', sum\(weight\) double. Let it be of a sum of whole numbers"),
        (replace(AMOUNT, of="most"), r"of 'most', max\(quantity\) long"),
        (replace(AMOUNT, of="plan"), "of 'plan', which it does not have"),
        (replace(AMOUNT, by=("day",)), "by 'day' of the type date. Let it be by columns of the type string"),
        (replace(AMOUNT, name="events"), "two of its columns are called 'events'"),
        (replace(AMOUNT, name="plan"), "two of its columns are called 'plan'"),
    ],
)
def test_what_the_view_s_columns_do_not_allow_is_refused_when_it_starts(computed: Computed, reason: str) -> None:
    with pytest.raises(ViewInvalid, match=reason):
        check_computed(replace(CATALOGUE, computed=(computed,)))


def test_no_two_computed_columns_have_one_name_and_a_state_variable_has_none() -> None:
    with pytest.raises(ViewInvalid, match="two of its columns are called 'amount'"):
        check_computed(replace(CATALOGUE, computed=(AMOUNT, AMOUNT)))
    with pytest.raises(ViewInvalid, match="computed columns of a state variable"):
        check_computed(replace(CATALOGUE, kind="state-variable"))


def test_a_value_is_what_the_steps_of_the_key_s_texts_make_of_the_column(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    extend_functions(path, {("basic",): BASIC, ("free",): Tiers((Tier(0, 0, 1),))})
    computed = ComputedColumns(CATALOGUE, KnownFunctions("bill", path))
    assert computed.values(["emma", "basic", 0], [1, 103, 0.0, 103]) == [13]
    assert computed.values(["emma", "free", 0], [1, 103, 0.0, 103]) == [0]
    assert computed.values(["emma", "basic", 0], [1, None, 0.0, None]) == [None], "of nothing"
    assert computed.values(["emma", None, 0], [1, 103, 0.0, 103]) == [None], "by nothing"
    with pytest.raises(ValueOverflow):
        computed.values(["emma", "basic", 0], [1, 2**63 - 1, 0.0, 0])
    assert ComputedColumns(replace(CATALOGUE, computed=()), None).values(["emma", "?", 0], [1, 2, 0.0, 2]) == []


def test_an_entry_that_is_not_known_is_looked_for_in_the_file_again(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    functions = KnownFunctions("bill", path)
    for name in ("basic", "plus"):
        with pytest.raises(CheckpointInvalid, match=rf"The view 'bill' has no function for \['{name}'\]") as missing:
            functions.of((name,))
        assert missing.value.where == str(path)
        extend_functions(path, {(name,): BASIC})
        assert functions.of((name,)) == BASIC
    path.unlink()
    assert functions.of(("plus",)) == BASIC, "what is known needs no file"


def test_a_table_whose_entries_were_changed_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    functions = KnownFunctions("bill", path)
    extend_functions(path, {("basic",): BASIC})
    functions.of(("basic",))
    path.unlink()
    extend_functions(path, {("basic",): Tiers((Tier(0, 1, 1),)), ("plus",): BASIC})
    with pytest.raises(CheckpointInvalid, match="The function for basic is"):
        functions.of(("plus",))
    assert functions.of(("basic",)) == BASIC


def test_the_values_of_several_rows_are_added_without_those_that_have_none() -> None:
    total, function = computed_sum(AMOUNT), Tiers((Tier(0, 1, 1),))
    added = total.partial(computed_buffers(function, None))
    assert total.total(added) is None
    for number in (2, None, 2**62):
        added = total.merge(added, total.partial(computed_buffers(function, number)))
    assert total.total(added) == 2**62 + 2
    with pytest.raises(ValueOverflow, match="'amount' has grown too large for its type long") as told:
        total.total(total.merge(added, total.partial(computed_buffers(function, 2**62))))
    assert told.value.next_step == "Ask for the rows, or let the function give larger units"
    with pytest.raises(ValueOverflow, match="'amount' has grown too large for its type long"):
        total.total(total.merge(added, total.partial(computed_buffers(BASIC, 2**63 - 1))))
