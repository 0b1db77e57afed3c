"""Sealing: what billing's sink makes of a batch, invoices, notes for late events and dead letters for bad ones."""
