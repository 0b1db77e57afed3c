"""Whether the past is still what it was: the ledger's sums are worth nothing if the journal was changed under them.

Every audit reads again the newest events that it has folded, and some older ones, going round: so a change is found
soon, though not at once. `--full` reads everything, and forgets what it read before.
"""

from __future__ import annotations

from stateside.billing.audit.fold import chunks, digest_of
from stateside.billing.audit.ledger import Ledger
from stateside.errors import PastChanged
from stateside.journal import Journal

RECHECKED_EVENTS = 250_000  # at least so many older events are read again each time


def check_past(ledger: Ledger, journal: Journal) -> None:
    """PastChanged if the journal is not the one, or not as it was, when the ledger was filled."""
    if ledger.position == 0:
        return
    if ledger.journal != journal.id():
        raise _changed(journal, f"it is {journal.id()}, and was {ledger.journal} at the last audit")
    end = journal.durable_end().offset
    if end < ledger.position:
        raise _changed(journal, f"it ends at offset {end:,}, and {ledger.position:,} events of it were audited before")
    for start, stop, digest in _to_recheck(ledger):
        _recheck(ledger, journal, start, stop, digest)


def _to_recheck(ledger: Ledger) -> list[tuple[int, int, int]]:
    """The last chunk, and those that follow where the last audit stopped to look, going round."""
    found = ledger.rows(
        """
        with older as (
            select *, sum(stop - start) over (order by start < rechecked, start) - (stop - start) as before
            from chunks, fold
        )
        select start, stop, digest from older
        where before < ? or stop = position order by start < rechecked, start
        """,
        RECHECKED_EVENTS,
    )
    going_round = [stop for _, stop, _ in found if stop != ledger.position]
    ledger.sql.execute("update fold set rechecked = ?", [going_round[-1] if going_round else 0])
    return [(start, stop, digest) for start, stop, digest in found]


def _recheck(ledger: Ledger, journal: Journal, start: int, stop: int, digest: int) -> None:
    found = sum(digest_of(ledger, chunk) for *_, chunk in chunks(journal, start, stop))
    if found != digest:
        raise _changed(journal, f"its events from offset {start:,} to {stop:,} are not those of the last audit")


def _changed(journal: Journal, how: str) -> PastChanged:
    return PastChanged(
        f"The journal is not what it was: {how}",
        where=str(journal.directory),
        next_step="Find out who changed it: events never change. With --full the audit begins anew",
    )
