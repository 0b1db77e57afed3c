"""Billing: usage events in, running bills and invoices out. The application that shows the whole system at work.

`model` has usage events and money, `calendar` the periods, `generator` customers who telephone, `pipeline` the view in
PySpark, `invoices` the sealed documents, `api` the HTTP routes, `audit` the independent proof that every sum is right.
"""
