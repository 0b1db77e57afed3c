"""The auditor: recomputes every bill from the journal alone, and proves what was made of it.

It is a program of its own. It shares the event schema with the pipeline and nothing else: it has its own calendar, its
own reading of plans, its own arithmetic of money, its own judgement of bad events (`make lint` enforces it). If one of
the two is wrong, they disagree, and the audit says where.

    journal ──► fold ──► ledger ──┐
                                  ├──► laws ──► holds, or sentences that say what is wrong
    replica, documents, letters ──┘

It stands at one batch of the view `bill`: the one of the replica's snapshot. `fold` says how an event is judged,
`account_laws` and `document_laws` what must hold, `answers` and `answer_sums` how a running server is examined.
"""

from stateside.billing.audit.auditor import LAWS, Audit, audit, live_rows
from stateside.billing.audit.balance import Balance
from stateside.billing.audit.found import Live, LiveBatch
from stateside.billing.audit.live_answers import recheck

__all__ = ["LAWS", "Audit", "Balance", "Live", "LiveBatch", "audit", "live_rows", "recheck"]
