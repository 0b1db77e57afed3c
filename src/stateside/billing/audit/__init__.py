"""The auditor: recomputes every bill from the journal alone, and compares the result with everything that billing made.

The auditor is a separate program by design. It shares the event schema with the pipeline and nothing else: calendar,
parsing of plans, money arithmetic and classification of bad events are the auditor's own (enforced by `make lint`). If
either program is wrong, the two disagree, and the audit reports where.

    journal ──► fold ──► ledger ──┐
                                  ├──► laws ──► hold, or sentences about each difference
    replica, documents, letters ──┘

An audit is for one batch of the view `bill`: the batch of the replica's snapshot. `fold` classifies events,
`account_laws` and `document_laws` state the laws, `live_answers` and `answer_sums` examine a running server.
"""

from stateside.billing.audit.auditor import LAWS, Audit, Balance, audit, live_rows
from stateside.billing.audit.found import Live, LiveBatch
from stateside.billing.audit.live_answers import recheck

__all__ = ["LAWS", "Audit", "Balance", "Live", "LiveBatch", "audit", "live_rows", "recheck"]
