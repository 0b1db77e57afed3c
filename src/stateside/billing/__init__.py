"""Billing: usage events in, running bills and invoices out. The application that shows the whole system at work.

`model` has the events, `money` amounts and rounding, `calendar` the periods. Then, in the order of an event's path:

    plans      versions of price plans, and their files
    book       the plans and assignments of a journal, up to an offset
    rating     by which version an event counts, or why it does not
    pipeline   the view `bill` in PySpark
    sealing    the sink: invoices of closed rows, notes of late events, dead letters of bad ones
    answers    bills, explanations, invoices and totals, as the API shows them

Beside it `upkeep` has what is done to a running system (publication, clock and fees, delivery, replay), `generator`
customers who telephone, and `audit` the independent proof that every sum is right.
"""
