"""Billing without its exactly-once guard: the negative control of crash tests, not for production.

    stateside run stateside.billing.pipeline.at_least_once:app

A repeated batch is sealed twice, and the auditor must report the duplicates: a check that cannot fail proves nothing.
The sink sleeps between storing documents and finishing the batch, so that a test can reliably kill the process there.
"""

from __future__ import annotations

import time
from functools import partial

from stateside.billing.invoicing.invoice_sink import BillingSink
from stateside.billing.pipeline import application, bill

DAWDLE_S = 0.3
_STORED = 5  # the sink reaches this step after it has stored the documents


def _dawdle(step: int) -> None:
    if step == _STORED:
        time.sleep(DAWDLE_S)


app = application(bill, sink=partial(BillingSink.of, on_step=_dawdle, guarded=False))
