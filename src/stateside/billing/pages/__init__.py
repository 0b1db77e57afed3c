"""Billing's web pages, the customer's bill and the operator's business page, and billing's extension of the server.

The pages call `answers.api`; `EXTENSION` registers billing's routes, SQL tables, pages and metrics. Without bills they
are empty.
"""

from __future__ import annotations

from typing import Final

from stateside.billing.model import APPLICATION
from stateside.serving import Extension, Page

PAGES = (
    Page("bill", "My bill", application=APPLICATION, customers=True),
    Page("business", "Business", "operator", application=APPLICATION),
)
EXTENSION: Final = Extension(
    routes=("stateside.billing.answers.api:routes",),
    tables=("stateside.billing.answers.document_store:sql_tables",),
    pages=("stateside.billing.pages",),
    metrics=("stateside.billing.answers.api:metrics",),
)
