"""Billing's answers: bills with their explanations, invoices, totals and dead letters, for the API and for people."""
