"""Billing's pages: what a customer sees of their bill, and management of everybody's. They ask `answers.api`."""

from __future__ import annotations

from stateside.billing.model import APPLICATION
from stateside.serving.pages.page import Page

PAGES = (
    Page("bill", "My bill", application=APPLICATION, customers=True),
    Page("business", "Business", "operator", application=APPLICATION),
)
