"""Billing's pages: what a customer sees of their bill, and management of everybody's. They ask `answers.api`.

What billing brings to the server of its folder: answers, tables and pages. Without bills they show nothing.
"""

from __future__ import annotations

from typing import Final

from stateside.billing.model import APPLICATION
from stateside.serving.extension import Extension
from stateside.serving.pages.page import Page

PAGES = (
    Page("bill", "My bill", application=APPLICATION, customers=True),
    Page("business", "Business", "operator", application=APPLICATION),
)
EXTENSION: Final = Extension(
    routes=("stateside.billing.answers.api:routes",),
    tables=("stateside.billing.answers.available_documents:sql_tables",),
    pages=("stateside.billing.pages",),
)
