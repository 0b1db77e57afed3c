"""The audit of what readers see: the replica's rows, a running server's answers, and the command."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import httpx
import pytest
from click.testing import CliRunner, Result

from stateside.billing.audit import audit, live_rows, recheck
from stateside.billing.audit.law import LawVerdict
from stateside.cli import main
from stateside.core.errors import NotFreshEnough, RequestInvalid
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.processes import Child, free_port
from stateside.core.storage import try_lock
from stateside.testing import answer
from tests.billing.audit.books import Books, document, line, used
from tests.billing.audit.live_bill import LiveBill, right_bill
from tests.sizes import not_in_fast


@pytest.fixture
def bill(tmp_path: Path) -> LiveBill:
    return right_bill(tmp_path / "billing")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["audit", *arguments])


def test_the_replica_s_rows_with_their_amounts_are_what_the_journal_says(bill: LiveBill) -> None:
    found = audit(bill.layout, live_rows(bill.layout))
    assert found.differences() == []
    assert (found.standing.batch, found.standing.offset, found.counts["open"]) == (0, 6, 3)
    bill.go_on(used("4", "ben", "message", "2026-01-11T00:00", 2), ben_message=(5, 2))
    found = audit(bill.layout, live_rows(bill.layout))
    assert (found.differences(), found.standing.batch, found.folded) == ([], 1, 1)


@not_in_fast("several audits; the laws are tried on finished books")
def test_a_row_that_the_state_has_wrong_is_told_with_its_amount(bill: LiveBill) -> None:
    bill.go_on(emma_call=(7_261, 2))
    assert audit(bill.layout, live_rows(bill.layout)).differences() == [
        "emma, 2026-01, call on basic@1: the journal says 7,260 in 2 events, 1.89 EUR; found 7,261 in 2 events, "
        "1.8915 EUR: 1 of quantity too many, 0.0015 EUR too much (in the running bill)."
    ]


@not_in_fast("several audits; the laws are tried on finished books")
def test_answers_of_the_past_are_compared_each_at_its_own_stamp(bill: LiveBill, tmp_path: Path) -> None:
    """As chaos does with what clients were told while something was broken."""
    given = [("emma", told(bill, "emma")), ("ben", told(bill, "ben"))]
    bill.go_on(used("4", "ben", "message", "2026-01-11T00:00", 2), ben_message=(5, 2))
    given += [("ben", told(bill, "ben")), ("ben", told(bill, "ben")), ("nobody", {**given[0][1], "rows": []})]
    assert recheck(bill.layout, tmp_path / "right", given) == (5, LawVerdict("answers", ANY, 0, ()))
    old = {**given[2][1], "rows": given[1][1]["rows"]}
    count, verdict = recheck(bill.layout, tmp_path / "wrong", [*given, ("ben", old)])
    assert (count, verdict.broken) == (6, 1)
    assert verdict.sentences[0].startswith(
        "ben, 2026-01, message on basic@1: the answer of batch 1, position 0:7, says"
    )
    lost = {**given[2][1], "rows": []}
    assert recheck(bill.layout, tmp_path / "lost", [*given, ("ben", lost)])[1].broken == 1


SUMS = ("amount_micros", "charged_micros", "events")


def entry(state: str, end: str, lines: list[dict[str, Any]], documents: list[dict[str, Any]]) -> dict[str, Any]:
    """A period of a bill, as the server shows it."""
    shown = [{name: one[name] for name in ("number", "kind", *SUMS)} for one in documents]
    sums = {name: sum(each[name] for each in documents or lines) for name in SUMS}
    rounding = sums["charged_micros"] - sum(each["charged_micros"] for each in lines)
    named = {"period": end, "period_end": end, "currency": "EUR", "state": state, "rounding_micros": rounding}
    return {**named, **sums, "lines": lines, "documents": shown}


def emma_s_bill(
    books: Books, numbers: Sequence[str] = ("I-000000001", "N-000000001"), **archive: Any
) -> dict[str, Any]:
    """January by these documents, and February by the open rows. The documents are away if `archive` is given."""
    issued = [one for one in books.documents if one["number"] in numbers]
    january = entry("sealed", "2026-01-31T23:00:00Z", [line for one in issued for line in one["lines"]], issued)
    rows = [row | {"charged_micros": row["amount_micros"]} for row in books.rows if row["customer"] == "emma"]
    february = entry("draft", rows[0]["period_end"], rows, [])
    return {
        "customer": "emma",
        "stamp": {"position": "0:25", "batch": 5, "watermark": "2026-02-01T00:00:00Z"},
        "periods": [january, february] if issued else [february],
        "totals": [],
        "archive": {"state": "away", "unknown": None, **archive} if archive else {"state": "current"},
    }


@not_in_fast("several audits; the laws are tried on finished books")
def test_whole_bills_of_the_past_are_compared_period_by_period(books: Books, tmp_path: Path) -> None:
    right = emma_s_bill(books)
    assert recheck(books.layout, tmp_path / "right", [], [("emma", right)]) == (1, LawVerdict("answers", ANY, 0, ()))
    january, february = right["periods"]
    more = {**february, "lines": [{**february["lines"][0], "events": 2}, *february["lines"][1:]], "events": 4}
    for name, periods in {
        "lost": [january],
        "unsealed": [february],
        "more": [january, more],
        "twice": [january, february, february],
    }.items():
        count, verdict = recheck(books.layout, tmp_path / name, [], [("emma", {**right, "periods": periods})])
        assert (count, verdict.broken) == (1, 1), name
        assert "the bill of batch 5, position 0:25, says" in verdict.sentences[0]


@not_in_fast("several audits; the laws are tried on finished books")
def test_bills_of_while_the_documents_were_away_have_the_known_ones_and_all_drafts(
    books: Books, tmp_path: Path
) -> None:
    """The note is of the event at 0:23, so it is not known at 0:23; without any known version nothing is closed."""
    unknown = {"after": "2026-01-01T00:00:00Z", "up_to": "2026-02-01T00:00:00Z"}
    right = [
        emma_s_bill(books, position="0:25"),
        emma_s_bill(books, ["I-000000001"], position="0:23"),
        emma_s_bill(books, [], position="0:23", unknown=unknown),
        emma_s_bill(books, [], position=None),
    ]
    given = [("emma", one) for one in right]
    assert recheck(books.layout, tmp_path / "right", [], given) == (4, LawVerdict("answers", ANY, 0, ()))
    for name, wrong in {
        "lacks N-000000001": emma_s_bill(books, ["I-000000001"], position="0:25"),
        "lacks I-000000001": emma_s_bill(books, [], position="0:23"),
        "has I-000000002 otherwise": emma_s_bill(books, ["I-000000001", "I-000000002"], position="0:23"),
    }.items():
        count, verdict = recheck(books.layout, tmp_path / name, [], [*given, ("emma", wrong)])
        assert (count, verdict.broken) == (5, 1)
        assert name in verdict.sentences[0]
    books.invoice("I-000000001")["lines"][0]["amount_micros"] += 1
    books.invoice("I-000000001")["amount_micros"] += 1
    off = emma_s_bill(books, ["I-000000001"], position="0:23")
    (sentence,) = recheck(books.layout, tmp_path / "off", [], [("emma", off)])[1].sentences
    assert "has I-000000001 otherwise than it was stored" in sentence
    off["periods"][1]["charged_micros"] += 10_000
    assert len(recheck(books.layout, tmp_path / "sums", [], [("emma", off)])[1].sentences) == 3, "it does not add up"


@not_in_fast("several audits; the laws are tried on finished books")
def test_a_row_that_is_there_twice_or_in_another_customer_s_answer_is_wrong(bill: LiveBill, tmp_path: Path) -> None:
    """Each of these rows is right by itself, and of the journal's rows none is missing."""
    emma, ben = told(bill, "emma"), told(bill, "ben")
    for name, given in {
        "twice": [("emma", {**emma, "rows": emma["rows"] * 2}), ("ben", ben)],
        "exchanged": [("emma", {**emma, "rows": ben["rows"]}), ("ben", {**ben, "rows": emma["rows"]})],
        "foreign": [("emma", {**emma, "rows": [*emma["rows"], *ben["rows"]]}), ("ben", ben)],
    }.items():
        count, verdict = recheck(bill.layout, tmp_path / name, given)
        assert (count, verdict.broken) == (2, 4 if name == "exchanged" else 1), name
    assert verdict.sentences[0].startswith("ben (in the answer for emma), 2026-01, message on basic@1: the answer of")


def told(bill: LiveBill, customer: str) -> dict[str, Any]:
    """What a server would answer."""
    found = answer(bill.layout, "bill", customer)
    return {"stamp": found.stamp.as_dict(), "rows": found.rows}


def test_a_folder_without_the_view_or_a_batch_is_told(bill: LiveBill, tmp_path: Path) -> None:
    with pytest.raises(RequestInvalid, match="There is no view 'bill'"), live_rows(Layout(tmp_path)):
        pass
    bill.view.replica.rename(tmp_path / "away")
    bill.view.checkpoint.rename(tmp_path / "never ran")
    with pytest.raises(NotFreshEnough, match="has no batch yet"), live_rows(bill.layout):
        pass


@not_in_fast("several audits; the laws are tried on finished books")
def test_where_no_server_moves_the_replica_the_newest_batch_is_audited(bill: LiveBill, tmp_path: Path) -> None:
    message = used("4", "ben", "message", "2026-01-11T00:00", 2)
    bill.go_on(message, follow=False, ben_message=(5, 2))
    assert audit(bill.layout, live_rows(bill.layout)).standing.batch == 1
    bill.view.replica.rename(tmp_path / "away")
    assert audit(bill.layout, live_rows(bill.layout)).standing.batch == 1, "it is built for the audit"
    bill.go_on(follow=False, ben_message=(5, 2))
    lock = try_lock(bill.view.replica / "writer.lock")
    assert lock is not None
    assert audit(bill.layout, live_rows(bill.layout)).standing.batch == 1, "a server's readers see this batch"
    os.close(lock)


@not_in_fast("several audits; the laws are tried on finished books")
def test_the_command_says_what_holds_and_ends_with_0(bill: LiveBill) -> None:
    found = run(str(bill.layout.root))
    assert found.exit_code == 0, found.output
    assert "Audited batch 0 at offset 6" in found.output
    assert (
        "6 events = 3 open, 0 invoiced, 0 corrected, 0 duplicates, 0 dead letters, 3 reference, 0 clock" in found.output
    )
    assert "BROKEN" not in found.output
    again = json.loads(run(str(bill.layout.root), "--json").stdout)
    assert (again["ok"], again["folded"], again["standing"]["offset"], again["differences"]) == (True, 0, 6, 0)
    assert json.loads(run(str(bill.layout.root), "--json", "--full").stdout)["folded"] == 6


def test_the_command_says_what_is_wrong_and_ends_with_1(bill: LiveBill) -> None:
    bill.go_on(ben_message=(2, 1))
    found = run(str(bill.layout.root))
    assert found.exit_code == 1
    assert "BROKEN  For every customer, period, type and plan" in found.output
    assert (
        "ben, 2026-01, message on basic@1: the journal says 3 in 1 event, 0.30 EUR; found 2 in 1 event" in found.output
    )
    report = json.loads(run(str(bill.layout.root), "--json").stdout)
    assert (report["ok"], report["differences"]) == (False, 1)
    (broken,) = (verdict for verdict in report["verdicts"] if verdict["broken"])
    assert broken["law"] == "conservation"


def test_the_command_refuses_what_is_no_application(tmp_path: Path) -> None:
    found = run(str(tmp_path))
    assert (found.exit_code, "There is no view 'bill'" in found.output) == (1, True)


def answering(books: Books, offset: int, batch: int, **changes: Any) -> Any:
    """A server that stands there, and answers with the books' rows."""

    def ask(customer: str, floor: Position) -> dict[str, Any]:
        assert floor == Position.of({"0": 25})
        rows = [{**row, **changes} for row in books.rows if row["customer"] == customer]
        stamp = {"position": f"0:{offset}", "batch": batch, "watermark": "2026-02-01T00:00:00Z"}
        return {"stamp": stamp, "rows": rows}

    return ask


def test_answers_are_recomputed_where_they_stand(books: Books) -> None:
    found = books.audit(ask=answering(books, 25, 5))
    assert (found.differences(), found.answers) == ([], 4)
    assert found.verdicts[-1].law == "answers"


@not_in_fast("several audits; the laws are tried on finished books")
def test_an_answer_may_be_further_than_the_audited_batch(books: Books) -> None:
    """The server went on: another event, and a batch that sealed carl's late message's neighbour."""
    books.position = 25
    late = used("late-3", "carl", "message", "2026-01-31T00:00", 1)
    books.pen.append("2026-02-05T00:00", used("m-1", "ben", "message", "2026-02-03T00:00", 1), late)
    note: dict[str, Any] = {"kind": "debit-note", "corrects": "I-000000003", "event_ids": ["late-3"]}
    books.documents.append(document("N-000000002", "carl", 27, line("message", 1, 1, 100_000, 100_000), **note))
    ahead = Books(books.layout, rows=[dict(row) for row in books.rows])
    ahead.rows[0] |= {"quantity": 3, "events": 2, "amount_micros": 300_000}
    found = books.audit(ask=answering(ahead, 27, 6))
    assert found.differences() == []
    assert (found.standing.offset, found.answers) == (25, 4)


def test_a_wrong_answer_is_told_with_its_stamp(books: Books) -> None:
    found = books.audit(ask=answering(books, 25, 5, quantity=30))
    assert [verdict.law for verdict in found.verdicts if verdict.broken] == ["answers"]
    assert found.differences()[0] == (
        "ben, 2026-02, message on basic@1: the answer of batch 5, position 0:25, says 30 in 1 event, 0.20 EUR; "
        "the journal says 2 in 1 event, 0.20 EUR by then."
    )
    assert found.verdicts[-1].broken == 3, "emma's 30 seconds are right"


def test_a_row_that_an_answer_lacks_is_told(books: Books) -> None:
    lacking = Books(books.layout, rows=books.rows[1:])
    (difference,) = books.audit(ask=answering(lacking, 25, 5)).differences()
    assert "says 0 in 0 events, 0.00 EUR; the journal says 2 in 1 event, 0.20 EUR by then." in difference


def test_an_answer_of_a_sealed_period_is_told(books: Books) -> None:
    """A row that was sealed in batch 4 must not be in an answer of batch 5."""
    row = dict(books.rows[0], customer="carl", period_end="2026-01-31T23:00:00Z", quantity=1, amount_micros=100_000)
    doubling = Books(books.layout, rows=[*books.rows, row])
    (difference,) = books.audit(ask=answering(doubling, 25, 5)).differences()
    assert difference.startswith("carl, 2026-01, message on basic@1: the answer of batch 5, position 0:25, says 1 in 1")


@contextmanager
def serving(layout: Layout, log: Path) -> Iterator[str]:
    port = free_port()
    child = Child([sys.executable, "-m", "stateside", "serve", "--dir", str(layout.root), "--port", str(port)], log)
    try:
        url, deadline_s = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while time.monotonic() < deadline_s and child.returncode() is None:
            try:
                if httpx.get(f"{url}/v1/views/bill/rows/emma").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        yield url
    finally:
        child.stop()


@pytest.mark.e2e
def test_a_running_server_s_answers_are_part_of_the_audit(bill: LiveBill, tmp_path: Path) -> None:
    with serving(bill.layout, tmp_path / "server.log") as url:
        found = run(str(bill.layout.root), "--json", "--url", url)
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    assert (report["answers"], report["verdicts"][-1]["law"]) == (2, "answers")
