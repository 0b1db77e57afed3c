"""The balance of an audit: the total number of lost and doubled events and documents, by the laws' queries.

An account with too few events has lost some, an account with too many has some twice: each account counts separately,
so that a loss in one account never cancels a double in another. A bad event is lost without its dead letter, and
doubled by a second one.
"""

from __future__ import annotations

from dataclasses import dataclass

from stateside.billing.audit.account_laws import CONSERVATION, DEAD_LETTERS
from stateside.billing.audit.document_laws import MISSING, ONCE
from stateside.billing.audit.ledger import Ledger

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
    """Events lost or counted more than once; invoices missing, documents stored twice."""

    events_lost: int = 0
    events_doubled: int = 0
    invoices_missing: int = 0
    invoices_doubled: int = 0


def balance(ledger: Ledger) -> Balance:
    """The balance of a ledger with documents and rows loaded."""
    ((lost, doubled),) = ledger.rows(_EVENTS)
    ((missing, double),) = ledger.rows(_DOCUMENTS)
    return Balance(int(lost), int(doubled), int(missing), int(double))
