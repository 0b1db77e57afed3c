"""Receipts of single events, as offsets."""

from collections.abc import Iterable

from stateside.core.positions import Position


def offsets(receipts: Iterable[Position]) -> list[int]:
    """The offset of each event, by its receipt."""
    return [receipt.one() - 1 for receipt in receipts]
