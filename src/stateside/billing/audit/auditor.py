"""The audit itself: bring the ledger up to the batch of the live rows, and judge all laws there."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any

from stateside.billing.audit.account_laws import ACCOUNT_LAWS, COUNTS, NAMED_PERIODS
from stateside.billing.audit.answer_sums import Get, judge_sums
from stateside.billing.audit.answers import Ask, compare_answers, floor_of, sampled_customers
from stateside.billing.audit.balance import Balance, balance
from stateside.billing.audit.document_laws import DOCUMENT_LAWS
from stateside.billing.audit.fold import Watch, fold
from stateside.billing.audit.found import Live, Standing, take_documents, take_live
from stateside.billing.audit.law import Verdict, judge, moment
from stateside.billing.audit.ledger import Ledger
from stateside.billing.audit.past import check_past
from stateside.journal.opened import open_journal
from stateside.layout import Layout

LAWS = (*ACCOUNT_LAWS, *DOCUMENT_LAWS)


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found, at which batch; `counts` says what became of the journal's events."""

    standing: Standing
    counts: dict[str, int]
    documents: int
    verdicts: tuple[Verdict, ...]
    folded: int
    fold_seconds: float
    seconds: float
    anew: str | None = None  # why it did not go on from the last audit
    answers: int = field(default=0)
    balance: Balance = field(default_factory=Balance)

    @property
    def ok(self) -> bool:
        """Whether all laws hold."""
        return not any(verdict.broken for verdict in self.verdicts)

    def differences(self) -> list[str]:
        """Where laws are broken, the first places of each as sentences; none if all holds."""
        return [sentence for verdict in self.verdicts for sentence in verdict.sentences]

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {"ok": self.ok, "differences": sum(verdict.broken for verdict in self.verdicts), **asdict(self)}

    def lines(self) -> list[str]:
        """For people."""
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
    watch: Watch = lambda offset, stop: None,
) -> Audit:
    """Judge all laws at the batch of these live rows; with `ask`, also a sample of answers of a running server.

    With `get`, which asks that server by the paths of its routes, also whether its bills and totals add up.

    PastChanged if the journal is not what the last audit read; with `full` everything is read anew. NotFreshEnough if
    the query was begun anew, and stands where no exact comparison can be made (see `found`).
    """
    began_s = time.monotonic()
    journal = open_journal(layout.journal)
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


def _judge_all(ledger: Ledger) -> tuple[list[Verdict], dict[str, int]]:
    ledger.sql.execute(NAMED_PERIODS)
    found = ledger.sql.execute(COUNTS)
    names = [column[0] for column in found.description]
    counts = {name: int(value) for name, value in zip(names, found.fetchall()[0], strict=True)}
    return [judge(ledger, law) for law in LAWS], counts
