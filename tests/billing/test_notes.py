"""Notes: late events change what is charged as if they had been on the invoice from the start."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.billing.invoicing.amounts import Amounts
from stateside.billing.invoicing.documents import BEFORE, DOCUMENTS, LATE, Corrections, corrections, invoices, numbered
from stateside.billing.money import Rounding, round_micros
from tests.billing.billed import BERLIN, DAILY, JANUARY, Row, amounts, closed, version
from tests.sizes import examples

JAN = JANUARY.end_us
FEB = BERLIN.containing(JAN).end_us
NONE = DOCUMENTS.schema.empty_table()
PLANS = amounts(version(), version("gold", 2, currency="USD"), version("daily", 1, cycle=DAILY))

Late = tuple[str, str, int, str, str, int]  # id, customer, period's end, type, plan, quantity


def late(events: list[Late], first: int = 0) -> pa.Table:
    names = ("id", "customer", "period_end", "type", "plan", "quantity")
    rows = [{"offset": offset, **dict(zip(names, event, strict=True))} for offset, event in enumerate(events, first)]
    times = pa.schema([field if field.name != "period_end" else ("period_end", pa.int64()) for field in LATE])
    return pa.Table.from_pylist(rows, times).cast(LATE)


def stored(before: pa.Table, found: Corrections) -> pa.Table:
    """All documents, once a batch with these corrections is sealed."""
    numbers = Counter(number[0] for number in before["number"].to_pylist())
    new = [numbered(found.late_invoices, "I", numbers["I"]), numbered(found.notes, "N", numbers["N"])]
    return pa.concat_tables([before, *new])


def correct(events: list[Late], before: pa.Table, plans: Amounts = PLANS, first: int = 0) -> Corrections:
    return corrections(late(events, first), before.select(BEFORE), plans)


def only(table: pa.Table) -> dict[str, Any]:
    row: dict[str, Any]
    (row,) = table.to_pylist()
    return row


EMMAS = numbered(invoices(closed([("emma", JAN, "call", "basic@1", 98, 3)]), PLANS, 0), "I", 0)


def test_a_late_event_makes_a_debit_note_with_the_difference_of_the_rounded_amounts() -> None:
    """98 seconds are free. 5 more make 3 beyond these, 0.01; 1 more 0.01333: nothing more is charged."""
    first = correct([("a", "emma", JAN, "call", "basic@1", 5)], EMMAS)
    note = only(first.notes)
    assert (note["kind"], note["corrects"], note["event_ids"]) == ("debit-note", "I-000000001", ["a"])
    assert (note["amount_micros"], note["charged_micros"], note["events"]) == (10_000, 10_000, 1)
    assert (note["customer"], note["period"], note["currency"], note["late"]) == ("emma", "2026-01", "EUR", False)
    assert first.late_invoices.num_rows == first.duplicates == 0
    second = only(correct([("b", "emma", JAN, "call", "basic@1", 1)], stored(EMMAS, first)).notes)
    assert (second["kind"], second["amount_micros"], second["charged_micros"]) == ("debit-note", 3_333, 0)
    assert [tuple(line.values()) for line in second["lines"]] == [("call", "basic@1", 1, 1, 3_333, 0)]


def test_a_late_credit_makes_a_credit_note() -> None:
    note = only(correct([("a", "emma", JAN, "credit", "basic@1", 1_234_567)], EMMAS).notes)
    assert (note["kind"], note["amount_micros"], note["charged_micros"]) == ("credit-note", -1_234_567, -1_230_000)


def test_a_late_event_of_a_customer_without_an_invoice_makes_one() -> None:
    events: list[Late] = [
        ("a", "noah", JAN, "call", "basic@1", 103),  # another customer,
        ("b", "emma", FEB, "call", "basic@1", 103),  # another period,
        ("c", "emma", JAN, "call", "gold@2", 103),  # another currency
    ]
    found = correct(events, EMMAS)
    assert found.notes.num_rows == 0
    accounts = [(row["customer"], row["period"], row["currency"]) for row in found.late_invoices.to_pylist()]
    assert accounts == [("emma", "2026-01", "USD"), ("noah", "2026-01", "EUR"), ("emma", "2026-02", "EUR")]
    for invoice in found.late_invoices.to_pylist():
        assert (invoice["kind"], invoice["corrects"], invoice["late"]) == ("invoice", None, True)
        assert (invoice["charged_micros"], len(invoice["event_ids"])) == (10_000, 1)


def test_a_note_bears_the_period_of_its_invoice() -> None:
    """Another plan's day ends where the month does: its late event goes to the month's invoice, by account."""
    note = only(correct([("a", "emma", JAN, "message", "daily@1", 1)], EMMAS).notes)
    assert (note["period"], note["period_start"]) == ("2026-01", EMMAS["period_start"][0].as_py())
    assert note["lines"][0]["plan"] == "daily@1"


def test_late_duplicates_are_dropped_and_counted() -> None:
    """Inside a batch, against a note, and against a late invoice; another customer's or period's id is no duplicate."""
    events: list[Late] = [
        ("a", "emma", JAN, "message", "basic@1", 1),
        ("a", "emma", JAN, "message", "basic@1", 7),
        ("a", "noah", JAN, "message", "basic@1", 1),
        ("a", "emma", FEB, "message", "basic@1", 1),
    ]
    first = correct(events, EMMAS)
    assert first.duplicates == 1
    assert only(first.notes)["lines"][0]["quantity"] == 1
    assert first.late_invoices["event_ids"].to_pylist() == [["a"], ["a"]]
    again = correct([*events, ("b", "noah", JAN, "message", "basic@1", 1)], stored(EMMAS, first))
    assert again.duplicates == 4
    assert only(again.notes)["event_ids"] == ["b"]
    assert again.late_invoices.num_rows == 0


def test_without_late_events_nothing_is_corrected() -> None:
    found = correct([], EMMAS)
    assert (found.notes.num_rows, found.late_invoices.num_rows, found.duplicates) == (0, 0, 0)


customers = st.sampled_from(["emma", "noah"])
lines = st.tuples(customers, st.sampled_from([JAN, FEB]), st.sampled_from(["call", "message", "credit"]))
quantities = st.one_of(st.integers(0, 120), st.integers(0, 10**6))
sealed = st.dictionaries(st.tuples(lines, st.sampled_from(["basic@1", "gold@2"])), quantities, max_size=6)
late_events = st.tuples(st.integers(0, 15), lines, st.sampled_from(["basic@1", "gold@2"]), quantities)
batches = st.lists(st.lists(late_events, max_size=6), max_size=4)


@settings(max_examples=examples(12, 200))
@given(sealed, batches, st.sampled_from(get_args(Rounding)), st.sampled_from(["EUR", "JPY", "KWD"]))
def test_invoice_and_notes_add_up_to_the_amounts_of_all_quantities_rounded_once(
    sealed: dict[Any, int], batches: list[list[Any]], rounding: Rounding, currency: str
) -> None:
    plans = amounts(version(rounding=rounding), version("gold", 2, currency=currency, rounding=rounding))
    rows: list[Row] = [(*line, plan, quantity, 1) for (line, plan), quantity in sealed.items()]
    documents = numbered(invoices(closed(rows), plans, 0), "I", 0)
    totals = Counter({(*line, plan): quantity for (line, plan), quantity in sealed.items()})
    events = Counter({(*line, plan): 1 for line, plan in sealed})
    seen: set[tuple[str, int, int]] = set()
    for number, batch in enumerate(batches):
        duplicates = 0
        for id_, (customer, end, type_), plan, quantity in batch:
            if (customer, end, id_) in seen:
                duplicates += 1
            else:
                totals[customer, end, type_, plan] += quantity
                events[customer, end, type_, plan] += 1
                seen.add((customer, end, id_))
        arrived = [(f"{id_}", *line, plan, quantity) for id_, line, plan, quantity in batch]
        found = correct(arrived, documents, plans, first=100 * number)
        assert found.duplicates == duplicates
        documents = stored(documents, found)
        check(documents, plans, totals, events)


def test_what_a_note_rounds_is_what_one_invoice_of_all_events_would_have() -> None:
    """0.0951 and 0.003333 are 0.098433, so 0.10. With 0.003333 more the calls are 0.01, and the sum is still 0.10."""
    sealed: list[Row] = [("emma", JAN, "message", "basic@1", 1, 1), ("emma", JAN, "call", "gold@1", 101, 1)]
    plans = amounts(version(), version("gold", 1))
    invoice = numbered(invoices(closed(sealed), plans, 0), "I", 0)
    (first,) = invoice.to_pylist()
    assert (first["amount_micros"], first["charged_micros"], first["rounding_micros"]) == (98_433, 100_000, 0)
    note = only(correct([("a", "emma", JAN, "call", "gold@1", 1)], invoice, plans).notes)
    assert (note["amount_micros"], note["charged_micros"], note["rounding_micros"]) == (3_333, 0, -10_000)
    assert [line["charged_micros"] for line in note["lines"]] == [10_000]


def test_the_notes_of_an_invoice_without_a_rounding_line_have_none_either() -> None:
    """As documents of Stateside 0.1 are: their totals are the sums of their lines, and stay so."""
    sealed: list[Row] = [("emma", JAN, "message", "basic@1", 1, 1), ("emma", JAN, "call", "basic@1", 101, 1)]
    place = DOCUMENTS.schema.get_field_index("rounding_micros")
    invoice = numbered(invoices(closed(sealed), PLANS, 0), "I", 0)
    invoice = invoice.set_column(place, DOCUMENTS.schema.field(place), pa.nulls(1, pa.int64()))
    found = correct([("a", "emma", JAN, "message", "basic@1", 1), ("b", "noah", JAN, "call", "basic@1", 1)], invoice)
    note = only(found.notes)
    assert note["rounding_micros"] is None
    assert note["charged_micros"] == sum(line["charged_micros"] for line in note["lines"]) == 90_000
    assert only(found.late_invoices)["rounding_micros"] == 0, "a new invoice has one"
    second = only(correct([("c", "emma", JAN, "call", "basic@1", 1)], stored(invoice, found), first=9).notes)
    assert second["rounding_micros"] is None


def check(documents: pa.Table, plans: Amounts, totals: Counter[Any], events: Counter[Any]) -> None:
    """What all documents of an account say, line by line, is what the quantities together cost; and they fit."""
    charged: Counter[Any] = Counter()
    exact_sums: Counter[Any] = Counter()
    sums: dict[str, Counter[Any]] = {name: Counter() for name in ("quantity", "events", "amount", "charged")}
    accounts: dict[Any, str] = {}
    for document in documents.to_pylist():
        end = int(document["period_end"].timestamp()) * 1_000_000
        account = (document["customer"], end, document["currency"])
        if document["kind"] == "invoice":
            assert account not in accounts
            accounts[account] = document["number"]
        else:
            assert document["corrects"] == accounts[account]
            assert document["event_ids"]
            assert (document["kind"] == "credit-note") >= (document["charged_micros"] < 0)
        charged[account] += document["charged_micros"]
        exact_sums[account] += document["amount_micros"]
        lines = sum(line["charged_micros"] for line in document["lines"])
        assert document["charged_micros"] == lines + document["rounding_micros"]
        rounding = plans.plans["basic@1"].rounding
        assert charged[account] == round_micros(exact_sums[account], document["currency"], rounding)
        for line in document["lines"]:
            key = (document["customer"], end, line["type"], line["plan"])
            sums["quantity"][key] += line["quantity"]
            sums["events"][key] += line["events"]
            sums["amount"][key] += line["amount_micros"]
            sums["charged"][key] += line["charged_micros"]
    assert (sums["quantity"], sums["events"]) == (totals, events)
    for key, quantity in totals.items():
        plan = plans.plans[key[3]]
        exact = plan.prices[key[2]].value(quantity)
        assert sums["amount"][key] == exact
        assert sums["charged"][key] == round_micros(exact, plan.currency, plan.rounding)
