"""Billing, the reference application: usage events in, running bills and invoices out.

`model` defines the events, `money` amounts and rounding, `calendar` the billing periods. In the order of an event's
path:

    plans      versions of price plans, and their TOML files
    book       the plans and assignments of a journal, up to an offset
    rating     the plan version by which an event counts, or the reason why the event does not count
    pipeline   the view `bill` in PySpark
    invoicing  the sink: invoices of closed rows, notes of late events, dead letters of bad events
    answers    bills, explanations, invoices and totals, as the API returns them
    pages      the web pages

`operations` runs on a live system (publication, clock and fees, delivery, replay), `generator` simulates customers, and
`audit` independently proves every sum.
"""
