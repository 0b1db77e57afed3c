"""Answers: bills with their explanations, invoices, totals and dead letters, as the API and people see them."""
