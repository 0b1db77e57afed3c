"""An audit goes on where the last one ended, and notices when the past is not what it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stateside.billing.audit import fold as folding
from stateside.billing.audit.ledger import Ledger
from stateside.core.errors import OperatingError, PastChanged
from stateside.journal import FileLog
from tests.billing.audit.books import Books, open_row, right_books, us, used
from tests.sizes import not_in_fast

MARCH_END = "2026-03-31T22:00:00Z"


def append_message(books: Books, quantity: int = 7) -> None:
    books.pen.append("2026-03-02T00:00", used("m-1", "ben", "message", "2026-03-01T00:00", quantity))


def audit_and_bring_back_the_journal_before(books: Books) -> None:
    """One more event is audited, then a copy without it takes the journal's place."""
    before = books.layout.root / "before"
    shutil.copytree(books.layout.journal, before)
    append_message(books)
    books.audit()
    shutil.rmtree(books.layout.journal)
    before.rename(books.layout.journal)


@not_in_fast("several audits")
def test_the_second_audit_folds_new_events_only(books: Books) -> None:
    append_message(books)
    books.rows.append(open_row("ben", MARCH_END, "message", "basic@1", 7, 1, 700_000))
    books.rollups.append({**books.rows[-1]})
    found = books.audit()
    assert (found.folded, found.differences(), found.counts["events"]) == (1, [], 26)
    assert books.audit().folded == 0
    again = books.audit(full=True)
    assert (again.folded, again.counts, again.anew) == (26, found.counts, "it was asked for")


def test_what_stands_behind_the_batch_is_not_looked_at(books: Books) -> None:
    books.position = FileLog(books.layout.journal).end()["0"]
    append_message(books)
    assert books.audit().differences() == []


@not_in_fast("several audits")
def test_rows_of_an_earlier_batch_make_the_audit_begin_anew(books: Books) -> None:
    """As after a replica was brought back from a copy: the ledger cannot go back."""
    append_message(books)
    assert books.audit().folded == 1
    books.position = 25
    found = books.audit()
    assert (found.differences(), found.folded) == ([], 25)
    assert found.anew == "the rows stand at offset 25, the last audit stood at 26"


@not_in_fast("several audits")
def test_a_crash_in_the_middle_of_the_fold_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    books = right_books(tmp_path)
    monkeypatch.setattr(folding, "CHUNK_EVENTS", 8)

    def crash(offset: int, stop: int) -> None:
        if offset == 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        books.audit(watch=crash)
    found = books.audit()
    assert (found.differences(), found.folded) == ([], 25 - 16)


@not_in_fast("several audits")
def test_a_crash_inside_a_chunk_leaves_the_ledger_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    books = right_books(tmp_path)
    with monkeypatch.context() as patch:
        patch.delattr(Ledger, "add_up")  # the last thing that is done for a chunk
        with pytest.raises(AttributeError, match="add_up"):
            books.audit()
    assert books.audit().differences() == []


@not_in_fast("two folders; a past that was written again is noticed in the same way")
def test_another_journal_is_noticed(books: Books, tmp_path: Path) -> None:
    other = right_books(tmp_path / "other")
    shutil.rmtree(books.layout.journal)
    shutil.copytree(other.layout.journal, books.layout.journal)
    with pytest.raises(PastChanged, match=r"it is .* and was .* at the last audit"):
        books.audit()
    assert books.audit(full=True).differences() == []


def test_a_journal_that_was_cut_is_noticed(books: Books) -> None:
    audit_and_bring_back_the_journal_before(books)
    with pytest.raises(PastChanged, match="it ends at offset 25, and 26 events of it were audited before"):
        books.audit()


def test_a_past_that_was_written_anew_is_noticed(books: Books) -> None:
    """The same journal went another way from a copy: it has the same id, and as many events."""
    audit_and_bring_back_the_journal_before(books)
    append_message(books, 8)
    with pytest.raises(PastChanged, match="its events from offset 25 to 26 are not those of the last audit"):
        books.audit()


@not_in_fast("many audits; a second one of the same folder is made below")
def test_the_older_past_is_looked_at_bit_by_bit(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateside.billing.audit.auditor.RECHECKED_EVENTS", 2)
    monkeypatch.setattr(folding, "CHUNK_EVENTS", 5)
    books.audit(full=True)
    with Ledger(books.layout.root / "audit") as ledger:
        ledger.sql.execute("update chunks set digest = digest + 1 where start = 10")
    books.audit()
    books.audit()
    with pytest.raises(PastChanged, match="from offset 10 to 15"):
        books.audit()


@pytest.mark.e2e
def test_two_audits_do_not_run_at_once(books: Books, tmp_path: Path) -> None:
    import subprocess
    import sys

    script = "import sys; from pathlib import Path; from stateside.billing.audit.ledger import Ledger;"
    script += "ledger = Ledger(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, str(books.layout.root / "audit")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(OperatingError, match="If another audit runs here, wait for its end"):
            books.audit()
        other.communicate("")
    assert books.audit().ok


@not_in_fast("several audits")
def test_a_ledger_of_another_format_is_made_anew(books: Books) -> None:
    with Ledger(books.layout.root / "audit") as ledger:
        ledger.sql.execute("update fold set format = 0")
    found = books.audit()
    assert (found.folded, found.differences()) == (25, [])


def test_a_folder_without_any_event_is_right(tmp_path: Path) -> None:
    from stateside.core.layout import Layout

    books = Books(Layout(tmp_path), watermark_us=0)
    assert books.audit().differences() == []
    books.watermark_us = us("2026-01-01T00:00")
    assert [verdict.law for verdict in books.audit().verdicts if verdict.broken] == ["watermark"]
