"""The judgement: what the auditor finds in each replica, and what is not as the generator made it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stateside.billing.audit import Audit, audit, live_rows, recheck
from stateside.billing.generator import Generator
from stateside.billing.model import VIEW
from stateside.billing.sealing.dead_letters import dead_letters_table
from stateside.billing.sealing.documents import documents_table
from stateside.ops.chaos.load import Load
from stateside.ops.chaos.system import System
from stateside.ops.chaos.witness import Record, running_bill, whole_bill
from stateside.ops.stage.feeder import NUDGE
from stateside.ops.stage.proof import Outcome, differences
from stateside.serving.clients import Client


@dataclass(frozen=True, slots=True)
class Judged:
    """What the auditor found, and what is not as the generator made it."""

    audit: Audit  # of the first replica
    outcome: Outcome
    differences: tuple[str, ...]
    answers: int  # that clients were given meanwhile, and that were compared
    wrong_answers: tuple[str, ...]  # those that are not what the journal says at their own stamp
    never_journalled: int  # events that the producer made and the journal does not have
    journalled_twice: int  # events that the journal has more often than the producer made them

    @classmethod
    def of(cls, system: System, load: Load, record: Record) -> Judged:
        """Judge a system that has come to rest and still serves, by what each of its replicas has."""
        generator, ids = load.generator(), [event.id for event in system.journal.events()]
        found = [one for one in ids if not one.startswith(NUDGE)]
        lost, doubled = lost_and_doubled([arrival.event.id for arrival in generator.arrivals()], found)
        nudges = len(ids) - len(found)
        judged = [_judge(system, number, generator, nudges) for number in range(len(system.replicas))]
        (audited, outcome, off), others = judged[0], judged[1:]
        known = {*audited.differences(), *off}
        more = [
            f"Of replica {number}: {told}"
            for number, (other, _, apart) in enumerate(others, 2)
            for told in (*other.differences(), *apart)
            if told not in known
        ]
        rows, bills = record.answers(running_bill), record.answers(whole_bill)
        answers, verdict = recheck(system.layout, system.desk.folder / "recheck", rows, bills)
        return cls(audited, outcome, (*off, *more), answers, verdict.sentences, lost, doubled)


def lost_and_doubled(made: Iterable[str], found: Iterable[str]) -> tuple[int, int]:
    """How many of the ids that were made were not found, and how many were found more often than they were made."""
    ours, theirs = Counter(made), Counter(found)
    return (ours - theirs).total(), (theirs - ours).total()


def _judge(system: System, number: int, generator: Generator, nudges: int) -> tuple[Audit, Outcome, list[str]]:
    """One replica: what the auditor finds, what came out, and what of it is not as the generator made it."""
    layout, report = system.layout, generator.report()
    with Client(system.urls[number], direct=True) as client:

        def ask(customer: str, floor: Any) -> dict[str, Any]:
            return dict(client.rows(VIEW, customer, min_position=floor).document)

        end = system.journal.end()
        audited = audit(
            layout,
            live_rows(system.replicas[number]),
            ask=ask,
            get=lambda path, floor: client.get(path, min_position=str(floor)),
        )
        rows = [row for customer in range(generator.customers) for row in ask(f"c{customer}", end)["rows"]]
    outcome = Outcome.of(documents_table(layout).read(), dead_letters_table(layout).read(), rows)
    return audited, outcome, differences(generator, report, outcome, audited.counts, nudges)
