"""The balance: how many events and documents are lost or doubled, each account and each letter by itself."""

from __future__ import annotations

from copy import deepcopy

from stateside.billing.audit import Balance
from tests.billing.audit.books import Books, letter


def test_right_books_have_lost_and_doubled_nothing(books: Books) -> None:
    found = books.audit()
    assert found.balance == Balance(0, 0, 0, 0)
    assert found.as_dict()["balance"]["events_lost"] == 0


def test_an_invoice_that_is_gone_is_missing_and_its_events_are_lost(books: Books) -> None:
    books.documents.remove(books.invoice("I-000000002"))
    assert books.audit().balance == Balance(events_lost=2, invoices_missing=1)


def test_an_invoice_that_is_there_twice_is_doubled_with_its_events(books: Books) -> None:
    again = deepcopy(books.invoice("I-000000002")) | {"number": "I-000000004", "sequence": 4}
    books.documents = [*books.documents[:4], again]
    assert books.audit().balance == Balance(events_doubled=2, invoices_doubled=1)


def test_a_loss_of_one_account_does_not_make_up_for_a_double_of_another(books: Books) -> None:
    books.row("ben")["events"] -= 1
    books.row("yuki")["events"] += 1
    found = books.audit().balance
    assert (found.events_lost, found.events_doubled) == (1, 1)


def test_a_bad_event_is_lost_without_its_letter_and_doubled_by_a_second_one(books: Books) -> None:
    books.letters = [each for each in books.letters if each["offset"] != 12]
    books.letters.append(letter(13, "bad-1", "negative-quantity"))
    assert books.audit().balance == Balance(events_lost=1, events_doubled=1)
