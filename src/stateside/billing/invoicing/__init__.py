"""Invoicing: billing's sink seals a batch into invoices, notes for late events, and dead letters for bad events."""
