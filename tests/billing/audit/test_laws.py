"""The auditor passes right books, and finds every single thing that is made wrong in them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from stateside.billing.audit import LAWS
from stateside.billing.audit.found import DOCUMENTS
from stateside.journal import Event
from tests.billing.audit.books import (
    FEBRUARY_END,
    Books,
    assign,
    document,
    letter,
    line,
    open_row,
    us,
    used,
)
from tests.sizes import not_in_fast, some


def test_right_books_break_no_law_and_every_event_is_in_one_class(books: Books) -> None:
    found = books.audit(full=True)
    assert found.differences() == []
    assert found.ok
    assert [verdict.law for verdict in found.verdicts] == [law.name for law in LAWS]
    assert found.counts == {
        "events": 25,
        "open": 5,
        "invoiced": 5,
        "corrected": 1,
        "duplicates": 1,
        "dead_letters": 5,
        "reference": 6,
        "clock": 2,
    }
    assert found.documents == 4, "what was sealed after the batch is not looked at"


@not_in_fast("several audits")
def test_documents_of_stateside_0_1_which_have_no_rounding_line_break_no_law(books: Books) -> None:
    """Nor do they where later invoices have one."""
    books.invoice("I-000000002")["charged_micros"] -= 10_000
    for number in ("I-000000001", "N-000000001", "I-000000002"):
        books.invoice(number)["rounding_micros"] = None
    assert books.audit(full=True).differences() == []
    for each in books.documents:
        each["rounding_micros"] = None
    assert books.audit(full=True).differences() == []
    for each in books.documents:
        del each["rounding_micros"]
    old = pa.schema([field for field in DOCUMENTS if field.name != "rounding_micros"])
    books.store("documents", books.documents, old, ["period"])
    assert books.audit(full=True).differences() == [], "a table that nobody has given the column yet"


# Each of these makes one thing wrong, and says which laws are broken by it, with words of the sentence.
Broken = dict[str, str]


def _a_micro_too_many_on_an_invoice_line(books: Books) -> Broken:
    invoice = books.invoice("I-000000001")
    invoice["lines"][0]["amount_micros"] += 1
    invoice["amount_micros"] += 1
    return {
        "conservation": "emma, 2026-01, call on basic@1: the journal says 7,261 in 2 events, 1.8915 EUR; "
        "found 7,261 in 2 events, 1.891501 EUR: 0.000001 EUR too much (in I-000000001, N-000000001).",
        "prices": "I-000000001 of emma, call on basic@1: 7,200 cost 1.80 EUR, charged 1.80 EUR; "
        "the line says 1.800001 EUR, charged 1.80 EUR.",
    }


def _a_line_that_is_rounded_wrongly(books: Books) -> Broken:
    invoice = books.invoice("I-000000002")
    invoice["lines"][1]["charged_micros"] = -10_000
    invoice["rounding_micros"] = 0
    return {"prices": "credit on basic@1: 15,000 cost -0.015 EUR, charged -0.02 EUR; the line says -0.015 EUR, charged"}


def _a_note_that_forgets_that_the_invoice_was_rounded(books: Books) -> Broken:
    note = books.invoice("N-000000001")
    note["lines"][0]["charged_micros"] = 91_500
    note["rounding_micros"] = -1_500
    return {
        "prices": "N-000000001 of emma, call on basic@1: 61 cost 0.0915 EUR, charged 0.09 EUR; the line says 0.0915"
    }


def _an_event_counted_twice_on_an_invoice(books: Books) -> Broken:
    invoice = books.invoice("I-000000002")
    invoice["lines"][0] |= {"quantity": 2, "events": 2, "amount_micros": 9_980_000, "charged_micros": 9_980_000}
    invoice |= {"events": 3, "amount_micros": 9_965_000, "charged_micros": 9_960_000, "rounding_micros": 0}
    return {
        "conservation": "ben, 2026-01, package:weekend on basic@1: the journal says 1 in 1 event, 4.99 EUR; found 2 "
        "in 2 events, 9.98 EUR: 1 of quantity too many, 1 event too many, 4.99 EUR too much (in I-000000002).",
        "counts": "The journal has 25 events, found were 26 (5 open, 6 invoiced, 1 corrected, 1 duplicates",
    }


def _an_open_row_that_lost_an_event(books: Books) -> Broken:
    books.rows[2] |= {"quantity": 4, "events": 1, "amount_micros": 400_000}
    books.rollups[0] |= {"quantity": 6, "events": 2, "amount_micros": 600_000}
    return {
        "conservation": "emma, 2026-02, message on basic@1: the journal says 5 in 2 events, 0.50 EUR; found 4 in 1 "
        "event, 0.40 EUR: 1 of quantity too few, 1 event too few, 0.10 EUR too little (in the running bill).",
        "counts": "1 too few",
    }


def _an_open_row_that_is_gone(books: Books) -> Broken:
    books.rows.pop()
    books.rollups.pop()
    return {"conservation": "yuki, 2026-01@15, data on nippon@1: the journal says 1,500,001", "counts": "1 too few"}


def _a_row_of_nobody(books: Books) -> Broken:
    books.rows.append(open_row("nobody", FEBRUARY_END, "call", "basic@1", 0, 0, 0))
    books.rollups[1] |= {}
    return {"conservation": "nobody, 2026-02, call on basic@1: the journal says 0 in 0 events"}


def _an_event_moved_to_another_customer(books: Books) -> Broken:
    books.rows[0] |= {"quantity": 3, "events": 2, "amount_micros": 300_000}
    books.rows[2] |= {"quantity": 4, "events": 1, "amount_micros": 400_000}
    return {"conservation": "ben, 2026-02, message on basic@1"}


def _an_open_row_with_a_wrong_price(books: Books) -> Broken:
    books.rows[1]["amount_micros"] = books.rollups[1]["amount_micros"] = 45_000
    return {"conservation": "found 30 in 1 event, 0.045 EUR: 0.045 EUR too much (in the running bill)."}


def _a_rollup_that_is_not_its_rows(books: Books) -> Broken:
    books.rollups[0]["quantity"] += 1
    return {
        "rollups": "All customers, 2026-02, message on basic@1: the open rows add up to 7 in 3 events, 0.70 EUR; "
        "the rollup says 8 in 3 events, 0.70 EUR."
    }


def _a_rollup_of_nothing(books: Books) -> Broken:
    books.rollups.append(open_row("", FEBRUARY_END, "credit", "basic@1", 0, 0, 0))
    return {"rollups": "All customers, 2026-02, credit on basic@1"}


def _a_rollup_that_is_missing(books: Books) -> Broken:
    books.rollups.pop()
    return {"rollups": "the open rows add up to 1,500,001 in 1 event, 1.500001 JPY; the rollup says 0"}


def _an_event_that_only_the_journal_has(books: Books) -> Broken:
    books.pen.append("2026-02-05T00:00", used("forgotten", "ben", "message", "2026-02-03T00:00", 1))
    return {"conservation": "ben, 2026-02, message on basic@1: the journal says 3 in 2 events", "counts": "1 too few"}


def _an_assignment_that_makes_a_letter_wrong(books: Books) -> Broken:
    books.pen.append("2026-02-05T00:00", used("good", "nora", "call", "2026-02-03T00:00", 60))
    books.letters.append(letter(25, "good", "malformed"))
    return {"dead-letters": "The event 'good' at offset 25 is unknown-customer, but its dead letter says malformed."}


def _a_bad_event_without_a_letter(books: Books) -> Broken:
    books.letters.pop(2)
    return {
        "dead-letters": "The event 'bad-2' at offset 14 is future-dated, but there is no dead letter of it.",
        "counts": "1 too few",
    }


def _a_letter_of_a_good_event(books: Books) -> Broken:
    books.letters.append(letter(6, "e-1", "malformed"))
    return {
        "dead-letters": "The event 'e-1' at offset 6 is a dead letter, malformed, but nothing is wrong with it.",
        "counts": "1 too many",
    }


def _a_letter_that_is_there_twice(books: Books) -> Broken:
    books.letters.append(dict(books.letters[0]))
    return {"dead-letters": "The event 'bad-0' at offset 12 is a dead letter 2 times.", "counts": "1 too many"}


def _a_letter_with_another_reason(books: Books) -> Broken:
    books.letters[1]["reason"] = "absurd-quantity"
    return {"dead-letters": "at offset 13 is negative-quantity, but its dead letter says absurd-quantity."}


def _a_letter_under_another_id(books: Books) -> Broken:
    books.letters[1]["id"] = "bad-7"
    return {"dead-letters": "The event 'bad-1' at offset 13 is a dead letter under another id, 'bad-7'."}


def _a_watermark_that_a_bad_event_moved(books: Books) -> Broken:
    books.watermark_us = us("2026-02-17T00:00")
    return {
        "watermark": "The watermark stands at 2026-02-17T00:00:00Z, but no event allows more than 2026-02-01T00:00:00Z",
        "none-missing": "yuki, 2026-01@15: the period is closed, but there is no invoice in JPY.",
        "closed": "yuki, 2026-01@15, data on nippon@1: the watermark, 2026-02-17T00:00:00Z, has closed the period",
    }


def _a_missing_invoice(books: Books) -> Broken:
    books.documents.remove(books.invoice("I-000000003"))
    return {
        "conservation": "found 0 in 0 events, 0.00 EUR: 1 of quantity too few, 1 event too few, 0.10 EUR too little "
        "(it is nowhere).",
        "counts": "1 too few",
        "none-missing": "carl, 2026-01: the period is closed, but there is no invoice in EUR.",
        "numbers": "Before I-000000004 there is a gap: I-000000003 is missing.",
    }


def _a_gap_in_the_numbers(books: Books) -> Broken:
    books.invoice("I-000000004").update(number="I-000000007", sequence=7)
    return {"numbers": "Before I-000000007 there is a gap: I-000000004 to I-000000006 is missing."}


def _a_series_that_begins_at_two(books: Books) -> Broken:
    books.invoice("N-000000001").update(number="N-000000002", sequence=2)
    return {"numbers": "Before N-000000002 there is a gap: N-000000001 is missing."}


def _a_number_that_is_not_its_sequence(books: Books) -> Broken:
    books.invoice("I-000000003")["number"] = "I-3"
    return {"numbers": "The document I-3 has the sequence 3, whose number is I-000000003."}


def _a_document_number_zero(books: Books) -> Broken:
    books.documents.append(document("I-000000000", "carl", 5, line("message", 0, 0, 0, 0)))
    return {"numbers": "The document I-000000000 has a sequence below 1.", "once": "carl, 2026-01"}


def _a_document_that_is_there_twice(books: Books) -> Broken:
    books.documents.append(dict(books.invoice("I-000000002")))
    return {
        "numbers": "The number I-000000002 is there twice.",
        "once": "ben, 2026-01: there are 2 documents (invoice, EUR) where one belongs: I-000000002, I-000000002.",
        "conservation": "ben, 2026-01, credit on basic@1",
        "prices": "I-000000002 of ben",
        "totals": "I-000000002 has 4 lines for 2 pairs",
        "rounding": "I-000000002 of ben",
        "counts": "2 too many",
    }


def _an_invoice_in_two_parts(books: Books) -> Broken:
    invoice = books.invoice("I-000000001")
    message = invoice["lines"].pop()
    invoice |= {"amount_micros": 1_800_000, "charged_micros": 1_800_000, "events": 1}
    books.documents.remove(books.invoice("I-000000004"))
    books.documents.append(document("I-000000004", "emma", 25, message))
    return {"once": "emma, 2026-01: there are 2 documents (invoice, EUR) where one belongs: I-000000001, I-000000004."}


def _two_notes_of_the_same_events(books: Books) -> Broken:
    books.pen.append("2026-02-05T00:00", used("late-3", "emma", "message", "2026-01-05T00:00", 1))
    named: dict[str, Any] = {"kind": "debit-note", "corrects": "I-000000001", "event_ids": ["late-3"]}
    books.documents.append(document("N-000000002", "emma", 24, line("message", 1, 1, 100_000, 100_000), **named))
    return {
        "once": "emma, 2026-01: there are 2 documents (debit-note, EUR) of events up to offset 24 where "
        "one belongs: N-000000001"
    }


def _a_row_of_a_closed_period(books: Books) -> Broken:
    row = books.invoice("I-000000003")["lines"][0]
    books.rows.append(open_row("carl", "2026-01-31T23:00:00Z", "message", "basic@1", 1, 1, row["amount_micros"]))
    books.rollups.append({**books.rows[-1]})
    return {
        "closed": "carl, 2026-01, message on basic@1: the watermark, 2026-02-01T00:00:00Z, has closed the period, but "
        "the row is open.",
        "conservation": "(in the running bill, I-000000003)",
        "counts": "1 too many",
    }


def _a_document_before_its_time(books: Books) -> Broken:
    books.invoice("I-000000004")["sealed_position"] = 25
    return {
        "not-early": "I-000000004 of nobody for 2026-02: its period ends at 2026-02-28T23:00:00Z, but no event allows "
        "more than 2026-02-01T00:00:00Z."
    }


def _totals_that_are_not_the_lines(books: Books) -> Broken:
    books.invoice("I-000000001")["charged_micros"] += 10_000
    return {
        "totals": "I-000000001 says in all 2.10 EUR, charged 2.11 EUR, in 2 events; its lines and their rounding add "
        "up to 2.10 EUR, charged 2.10 EUR, in 2 events.",
        "rounding": "I-000000001 of emma for 2026-01 charges 2.11 EUR",
    }


def _a_total_that_is_the_sum_of_the_rounded_lines(books: Books) -> Broken:
    books.invoice("I-000000002").update(rounding_micros=0, charged_micros=4_970_000)
    return {
        "rounding": "I-000000002 of ben for 2026-01 charges 4.97 EUR; rounded once, its account's exact amount leaves "
        "4.98 EUR to charge."
    }


def _a_note_that_rounds_a_cent_too_many(books: Books) -> Broken:
    books.invoice("N-000000001").update(rounding_micros=10_000, charged_micros=100_000)
    return {"rounding": "N-000000001 of emma for 2026-01 charges 0.10 EUR; rounded once, its account's exact amount"}


def _a_rounding_that_no_total_has(books: Books) -> Broken:
    books.invoice("I-000000001")["rounding_micros"] = 10_000
    return {"totals": "charged 2.10 EUR, in 2 events; its lines and their rounding add up to 2.10 EUR, charged 2.11"}


def _a_note_without_the_rounding_line_of_its_invoice(books: Books) -> Broken:
    books.invoice("N-000000001")["rounding_micros"] = None
    return {"rounding": "N-000000001 of emma for 2026-01 has no rounding line, and its invoice has one."}


def _a_note_with_the_rounding_line_that_its_invoice_lacks(books: Books) -> Broken:
    books.invoice("I-000000001")["rounding_micros"] = None
    return {"rounding": "N-000000001 of emma for 2026-01 has a rounding line, and its invoice has none."}


def _an_invoice_that_has_lost_its_rounding_line(books: Books) -> Broken:
    books.invoice("I-000000003")["rounding_micros"] = None
    return {"rounding": "I-000000003 of carl for 2026-01 has no rounding line, and earlier invoices have one."}


def _a_document_without_lines(books: Books) -> Broken:
    books.documents[4] = document("I-000000004", "carl", 5)
    return {"totals": "I-000000004 has no lines.", "once": "carl, 2026-01"}


def _a_line_that_is_there_twice(books: Books) -> Broken:
    invoice = books.invoice("I-000000003")
    invoice["lines"] = [line("message", 1, 1, 100_000, 100_000), line("message", 0, 0, 0, 0)]
    return {"totals": "I-000000003 has 2 lines for 1 pairs of type and plan."}


def _a_plan_that_nobody_published(books: Books) -> Broken:
    books.invoice("I-000000003")["lines"][0]["plan"] = "basic@9"
    return {
        "prices": "I-000000003 of carl, message on basic@9: the journal publishes no such price.",
        "headers": "by the calendar of its plans no period of any event ends then.",
        "conservation": "carl, 2026-01, message on basic@1",
    }


def _a_currency_that_is_not_the_plan_s(books: Books) -> Broken:
    books.invoice("I-000000003")["currency"] = "USD"
    return {
        "prices": "I-000000003 of carl, message on basic@1: the document is in USD, the plan in EUR.",
        "none-missing": "carl, 2026-01: the period is closed, but there is no invoice in EUR.",
    }


def _a_wrong_label(books: Books) -> Broken:
    books.invoice("I-000000003")["period"] = "2026-02"
    return {"headers": "I-000000003 is for 2026-02, 2025-12-31T23:00:00Z to 2026-01-31T23:00:00Z: by the calendar of"}


def _a_wrong_start(books: Books) -> Broken:
    books.invoice("I-000000003")["period_start"] += timedelta(hours=1)
    return {"headers": "by the calendar of its plans it is 2026-01 from 2025-12-31T23:00:00Z."}


def _a_note_of_an_invoice_that_is_not_there(books: Books) -> Broken:
    books.invoice("N-000000001")["corrects"] = "I-000000009"
    return {
        "notes": "The debit-note N-000000001 of emma for 2026-01 corrects I-000000009, but there is no such invoice."
    }


def _a_note_of_another_customer_s_invoice(books: Books) -> Broken:
    books.invoice("N-000000001")["corrects"] = "I-000000002"
    return {"notes": "corrects I-000000002, which is of another customer, period or currency."}


def _a_note_of_what_its_invoice_has(books: Books) -> Broken:
    books.invoice("N-000000001")["sealed_position"] = 23
    return {"notes": "corrects I-000000001, which says that it has the events up to there itself."}


def _a_note_of_the_other_kind(books: Books) -> Broken:
    books.invoice("N-000000001")["kind"] = "credit-note"
    return {"notes": "charges 0.09 EUR: that is the other kind of note."}


def _a_document_of_no_kind(books: Books) -> Broken:
    books.invoice("N-000000001")["kind"] = "apology"
    return {"notes": "The apology N-000000001 of emma for 2026-01 is neither invoice nor credit note nor debit note."}


def _an_invoice_that_corrects(books: Books) -> Broken:
    books.invoice("I-000000002")["corrects"] = "I-000000001"
    return {"notes": "says that it corrects I-000000001; an invoice corrects nothing."}


def _a_late_event_that_is_not_there(books: Books) -> Broken:
    books.invoice("N-000000001")["event_ids"] = ["bad-1"]
    return {
        "late-events": "N-000000001 of emma for 2026-01 names the event 'bad-1', which the journal does not have as"
    }


def _a_late_event_of_somebody_else(books: Books) -> Broken:
    books.invoice("N-000000001")["event_ids"] = ["b-1"]
    return {"late-events": "names the event 'b-1', which is of another customer or period."}


def _a_late_event_that_is_named_twice(books: Books) -> Broken:
    books.invoice("N-000000001").update(event_ids=["late-1", "late-1"])
    return {"late-events": "N-000000001 of emma for 2026-01 has 1 events and names 2."}


def _a_late_invoice_without_its_events(books: Books) -> Broken:
    books.invoice("I-000000003")["event_ids"] = []
    return {"late-events": "I-000000003 of carl for 2026-01 has 1 events and names 0."}


def _an_invoice_in_time_that_names_events(books: Books) -> Broken:
    books.invoice("I-000000001")["event_ids"] = ["e-1", "e-2"]
    return {"late-events": "I-000000001 of emma for 2026-01 has 2 events and names 2."}


def _a_duplicate_beyond_the_horizon(books: Books) -> Broken:
    """The period was closed when the event came again: nobody knew its id any more, and a note was made of it."""
    books.pen.append("2026-02-05T00:00", used("b-1", "ben", "package", "2026-01-19T00:00", 1, name="weekend"))
    named = {"kind": "debit-note", "corrects": "I-000000002", "event_ids": ["b-1"]}
    again = line("package:weekend", 1, 1, 4_990_000, 4_990_000)
    books.documents.append(document("N-000000002", "ben", 26, again, rounding=-10_000, **named))
    return {
        "conservation": "ben, 2026-01, package:weekend on basic@1: the journal says 1 in 1 event, 4.99 EUR; found 2 "
        "in 2 events, 9.98 EUR: 1 of quantity too many, 1 event too many, 4.99 EUR too much (in I-000000002, "
        "N-000000002). The event 'b-1' came twice, at offsets 9 and 25, and counts once; N-000000002 billed the "
        "repetition, which came beyond the horizon of de-duplication.",
        "repeated": "The event 'b-1' at offset 25 has the id of the one at offset 9, whose period was closed, but",
        "counts": "1 too many",
    }


def _a_repetition_after_the_close_that_nothing_says_anything_of(books: Books) -> Broken:
    books.pen.append("2026-02-05T00:00", used("late-1", "emma", "call", "2026-01-20T12:00", 61))
    return {"repeated": "The event 'late-1' at offset 25 has the id of the one at offset 23, whose period was closed"}


def _a_repetition_with_other_content_that_is_told_as_the_same(books: Books) -> Broken:
    books.pen.append("2026-02-05T00:00", used("late-1", "emma", "call", "2026-01-20T12:00", 62))
    books.letters.append(letter(25, "late-1", "repeated"))
    return {"repeated": "at offset 23, and is id-conflict, but its dead letter says repeated."}


def _a_letter_of_a_repetition_that_is_there_twice(books: Books) -> Broken:
    books.pen.append("2026-02-05T00:00", used("late-1", "emma", "call", "2026-01-20T12:00", 61))
    books.letters += [letter(25, "late-1", "repeated")] * 2
    return {"repeated": "The event 'late-1' at offset 25 is a dead letter 2 times.", "counts": "1 too many"}


def _a_new_event_that_is_told_to_be_repeated(books: Books) -> Broken:
    books.letters.append(letter(24, "late-2", "repeated"))
    return {"repeated": "is a dead letter, repeated, but no event before it has its id and counts.", "counts": "1 too"}


def _a_duplicate_that_nothing_removed(books: Books) -> Broken:
    books.pen.append("2026-02-05T00:00", used("b-3", "ben", "message", "2026-02-01T00:00", 2))
    books.rows[0] |= {"quantity": 4, "events": 2, "amount_micros": 400_000}
    books.rollups[0] |= {"quantity": 9, "events": 4, "amount_micros": 900_000}
    return {
        "conservation": "The event 'b-3' came twice, at offsets 18 and 25, and counts once; the repetition may",
        "counts": "1 too many",
    }


def _a_refused_assignment_that_was_followed(books: Books) -> Broken:
    """It takes effect sooner than an hour after it came, so that a replay could rate an event otherwise."""
    books.pen.append("2026-02-05T00:00", assign("again", "ben", "nippon", us("2026-02-05T00:59")))
    return {
        "dead-letters": "The event 'again' at offset 25 is assign-refused, but there is no dead letter of it.",
        "counts": "1 too few",
    }


def _a_plan_that_was_published_twice(books: Books) -> Broken:
    books.pen.append("2026-02-05T00:00", Event("again", "basic", "plan", 0, {}))
    return {"dead-letters": "The event 'again' at offset 25 is plan-refused", "counts": "1 too few"}


def _a_tick_from_the_future_that_counts(books: Books) -> Broken:
    books.pen.append("2026-02-05T00:00", Event("tick", "clock", "clock", us("2026-02-05T01:00:00.000001"), {}))
    return {"dead-letters": "The event 'tick' at offset 25 is future-dated", "counts": "1 too few"}


MUTATIONS = [value for name, value in list(globals().items()) if name.startswith(("_a_", "_an_", "_totals_", "_two_"))]


@pytest.mark.parametrize("mutate", some(MUTATIONS, 9), ids=lambda mutate: mutate.__name__.strip("_"))
def test_the_audit_finds(books: Books, mutate: Callable[[Books], Broken]) -> None:
    expected = mutate(books)
    found = books.audit()
    told = {verdict.law: " ".join(verdict.sentences) for verdict in found.verdicts if verdict.broken}
    assert told.keys() == expected.keys(), told
    for law, words in expected.items():
        assert words in told[law]
    assert not found.ok


def test_every_law_is_broken_by_some_test() -> None:
    named = {name for mutate in MUTATIONS for name in mutate.__code__.co_consts if isinstance(name, str)}
    named |= {
        key for mutate in MUTATIONS for keys in mutate.__code__.co_consts if isinstance(keys, tuple) for key in keys
    }
    assert {law.name for law in LAWS} <= named
