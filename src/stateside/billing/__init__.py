"""Billing: usage events in, running bills and invoices out. The application that shows the whole system at work.

`model` has the events, `money` amounts and rounding, `calendar` the periods; `plans` reads price plans, of which
`plan_version` is one version. `book` has the plans and assignments of a journal (`folding` the rules by which they are
accepted, `accounts` and `texts` the lookup, `book_file` the snapshots), and `rating` tells by which an event counts.

`generator` has customers who telephone, `clockwork` what time itself makes due (`recurring` fees), `pipeline` the view
in PySpark, `sink` what becomes of closed rows, late and bad events (`documents`, `notes`, `dead_letters`), `api` the
HTTP routes, `audit` the independent proof that every sum is right.
"""
