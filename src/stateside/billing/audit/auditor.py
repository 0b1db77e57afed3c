"""One audit: verify that the past is unchanged, bring the ledger up to the batch of the live rows, and judge all laws.

The ledger's sums are worthless if the journal was changed after they were made. So every audit reads the newest folded
events again, and some older ones in rotation: a change is found soon, though not at once. `--full` discards the ledger
and reads the whole journal.

The live rows of the view `bill` come from its replica, as readers see them: one snapshot, one batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from stateside.billing.audit.account_laws import ACCOUNT_LAWS, CONSERVATION, COUNTS, DEAD_LETTERS, NAMED_PERIODS
from stateside.billing.audit.answer_sums import Get, judge_sums
from stateside.billing.audit.document_laws import DOCUMENT_LAWS, MISSING, ONCE
from stateside.billing.audit.fold import chunks, digest_of, fold
from stateside.billing.audit.found import Live, LiveBatch, take_documents, take_live
from stateside.billing.audit.law import LawVerdict, judge, moment
from stateside.billing.audit.ledger import Ledger
from stateside.billing.audit.live_answers import Ask, compare_answers, floor_of, sampled_customers
from stateside.core import Layout, Storage, Watch, nobody
from stateside.core.errors import NotFreshEnough, PastChanged, ReplicaInvalid, RequestInvalid
from stateside.journal import Log, open_journal
from stateside.replica import ReplicaReader, Tail
from stateside.serving import Shape
from stateside.views import Catalogue, KnownFunctions

RECHECKED_EVENTS = 250_000  # minimum of older events read again per audit


def check_past(ledger: Ledger, journal: Log) -> None:
    """PastChanged if the journal is another one, or was changed, since the ledger was filled."""
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
    """The last chunk, and the chunks after the last audit's rotation point, wrapping around."""
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


def _recheck(ledger: Ledger, journal: Log, start: int, stop: int, digest: int) -> None:
    found = sum(digest_of(ledger, chunk) for *_, chunk in chunks(journal, start, stop))
    if found != digest:
        raise _changed(journal, f"its events from offset {start:,} to {stop:,} are not those of the last audit")


def _changed(journal: Log, how: str) -> PastChanged:
    return PastChanged(
        f"The journal is not what it was: {how}",
        where=journal.where,
        next_step="Find out who changed it: events never change. With --full the audit begins again",
    )


LAWS = (*ACCOUNT_LAWS, *DOCUMENT_LAWS)


_EVENTS = f"""
    with apart as (
        select coalesce(found_events, 0) - coalesce(events, 0) as more from ({CONSERVATION})
        union all
        select coalesce(copies, 0) - (reason is not null)::int as more from ({DEAD_LETTERS})
    )
    select coalesce(sum(greatest(-more, 0)), 0), coalesce(sum(greatest(more, 0)), 0) from apart
"""
_DOCUMENTS = f"""
    select (select count(*) from ({MISSING})), (select coalesce(sum(copies - 1), 0) from ({ONCE}))
"""


@dataclass(frozen=True, slots=True)
class Balance:
    """Events lost or counted more than once; invoices missing, documents stored twice; by the laws' queries.

    An account with too few events has lost some, an account with too many has some twice: each account counts
    separately, so that a loss in one account never cancels a double in another. A bad event is lost without its dead
    letter, and doubled by a second one.
    """

    events_lost: int = 0
    events_doubled: int = 0
    invoices_missing: int = 0
    invoices_doubled: int = 0


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit of one batch; `counts` has the journal's events by class."""

    standing: LiveBatch
    counts: dict[str, int]
    documents: int
    verdicts: tuple[LawVerdict, ...]
    folded: int
    fold_seconds: float
    seconds: float
    anew: str | None = None  # why the audit did not continue from the last one
    answers: int = field(default=0)
    balance: Balance = field(default_factory=Balance)

    @property
    def ok(self) -> bool:
        return not any(verdict.broken for verdict in self.verdicts)

    def differences(self) -> list[str]:
        """The first violations of each broken law as sentences; empty if all laws hold."""
        return [sentence for verdict in self.verdicts for sentence in verdict.sentences]

    def as_dict(self) -> dict[str, Any]:
        """The result for JSON output."""
        return {"ok": self.ok, "differences": sum(verdict.broken for verdict in self.verdicts), **asdict(self)}

    def lines(self) -> list[str]:
        """The result as text."""
        standing, counts = self.standing, self.counts
        parts = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in counts.items() if name != "events")
        rate = f" ({self.folded / self.fold_seconds:,.0f} a second)" if self.fold_seconds > 0 and self.folded else ""
        found = [
            f"Audited batch {standing.batch} at offset {standing.offset:,}, watermark {moment(standing.watermark_us)}",
            *([f"Read the journal from its start: {self.anew}"] if self.anew else []),
            f"{counts['events']:,} events = {parts}; {self.documents:,} documents",
            f"{self.folded:,} new events folded{rate}, {self.seconds:.1f} s in all",
        ]
        for verdict in self.verdicts:
            found.append(f"{'BROKEN' if verdict.broken else 'holds '}  {verdict.text}")
            found += [f"        {sentence}" for sentence in verdict.sentences]
            more = verdict.broken - len(verdict.sentences)
            found += [f"        … and {more:,} more"] if more else []
        return found


def audit(
    layout: Layout,
    live: AbstractContextManager[Live],
    *,
    ask: Ask | None = None,
    get: Get | None = None,
    full: bool = False,
    watch: Watch = nobody,
) -> Audit:
    """Judge all laws at the batch of these live rows; with `ask`, also a sample of answers of a running server.

    With `get`, which requests a path of the same server, also whether the server's bills and totals add up.

    PastChanged if the journal differs from the last audit's; with `full` the whole journal is read again.
    NotFreshEnough if the query was started over and has reached a position where no exact comparison is possible (see
    `found`).
    """
    began_s = time.monotonic()
    journal = open_journal(layout.journal).log()
    with Ledger(layout.audit) as ledger:
        anew = "it was asked for" if full else None
        if full:
            ledger.begin_anew()
        check_past(ledger, journal)
        with live as opened:
            standing = opened.standing
            if standing.offset < ledger.position:
                anew = f"the rows stand at offset {standing.offset:,}, the last audit stood at {ledger.position:,}"
                ledger.begin_anew()
            take_live(ledger, opened)
        before, fold_began_s = ledger.events, time.monotonic()
        fold(ledger, journal, standing.offset, watch)
        folded, fold_seconds = ledger.events - before, time.monotonic() - fold_began_s
        take_documents(ledger, layout, standing)
        verdicts, counts = _judge_all(ledger)
        balanced = balance(ledger)
        documents = int(ledger.one("select count(*) from documents"))
        summed = (judge_sums(get, sampled_customers(ledger), floor_of(ledger, journal)),) if get else ()
        answers, answered = compare_answers(ledger, layout, journal, ask) if ask else (0, ())
        seconds = time.monotonic() - began_s
    return Audit(
        standing,
        counts,
        documents,
        (*verdicts, *summed, *answered),
        folded,
        fold_seconds,
        seconds,
        anew=anew,
        answers=answers,
        balance=balanced,
    )


def _judge_all(ledger: Ledger) -> tuple[list[LawVerdict], dict[str, int]]:
    ledger.sql.execute(NAMED_PERIODS)
    found = ledger.sql.execute(COUNTS)
    names = [column[0] for column in found.description]
    counts = {name: int(value) for name, value in zip(names, found.fetchall()[0], strict=True)}
    return [judge(ledger, law) for law in LAWS], counts


VIEW = "bill"
ROLLUP = ("period_end", "plan", "type")


@contextmanager
def live_rows(layout: Layout) -> Iterator[Live]:
    """The rows of the replica's newest batch; RequestInvalid if the folder is not of a billing application."""
    view = layout.view(VIEW)
    if not view.catalogue.exists():
        raise RequestInvalid(
            f"There is no view {VIEW!r} in {layout.root}", next_step="Name the folder of a billing application"
        )
    functions = KnownFunctions(view.name, view.functions)
    try:
        shape = Shape(Catalogue.load(view.catalogue), Storage.at(view.checkpoint_location), functions)
    except FileNotFoundError:
        raise _no_batch(layout) from None
    reader = _reader(layout)
    try:
        with reader.snapshot() as snapshot:
            batch = snapshot.batch()
            if batch is None:
                raise _no_batch(layout)
            standing = LiveBatch(batch.batch, batch.position.one(), batch.watermark_us)
            yield Live(standing, shape.rows(snapshot), list(shape.rollup(ROLLUP).rows(snapshot)))
    finally:
        reader.close()


def _reader(layout: Layout) -> ReplicaReader:
    """The replica's reader; where no server moves the replica on, the audit does, up to the newest batch."""
    view = layout.view(VIEW)
    try:
        tail = Tail(view)
    except ReplicaInvalid:  # a server moves it
        pass
    else:
        with closing(tail):
            tail.step()
    try:
        return ReplicaReader(view.replica)
    except FileNotFoundError:
        raise _no_batch(layout) from None


def _no_batch(layout: Layout) -> NotFreshEnough:
    return NotFreshEnough(
        f"The view {VIEW!r} has no batch yet", where=str(layout.root), next_step="Run the application first"
    )


def balance(ledger: Ledger) -> Balance:
    """The balance of a ledger with documents and rows loaded."""
    ((lost, doubled),) = ledger.rows(_EVENTS)
    ((missing, double),) = ledger.rows(_DOCUMENTS)
    return Balance(int(lost), int(doubled), int(missing), int(double))
