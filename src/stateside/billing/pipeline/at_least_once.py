"""Billing without its exactly-once guard: the negative control of crash tests, and for nothing else.

    stateside run stateside.billing.pipeline.at_least_once:app

A batch that is repeated is sealed twice, and the auditor must find it: a proof that cannot fail proves nothing. It
dawdles between storing documents and being done with the batch, so that whoever wants to kill it there surely can.
"""

from __future__ import annotations

import time
from functools import partial

from stateside.billing.invoicing.invoice_sink import BillingSink
from stateside.billing.pipeline import application, bill

DAWDLE_S = 0.3
_STORED = 5  # the step of the sink at which the documents are stored


def _dawdle(step: int) -> None:
    if step == _STORED:
        time.sleep(DAWDLE_S)


app = application(bill, sink=partial(BillingSink.of, on_step=_dawdle, guarded=False))
