"""Vectorised amounts: exact prices and charged amounts of many lines at once, and array helpers for Arrow tables.

The results equal those of the scalar definitions `Tiers.value` and `round_micros`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.book.book import Book
from stateside.billing.money import MICROS_DIGITS, ROUNDINGS, TOTAL_ROUNDING, Rounding, minor_digits, round_micros
from stateside.billing.plans.file import PlanVersion
from stateside.core.errors import ValueOverflow

RANKS_MAX: Final = 2**62  # ranks beyond this could overflow a long
Longs = npt.NDArray[np.int64]


def longs(column: pa.ChunkedArray) -> Longs:
    """A column of whole numbers or of times (in microseconds) as an array; ValueOverflow beyond 64 bits."""
    try:
        return np.asarray(pc.cast(column, pa.int64()).to_numpy(), np.int64)
    except pa.ArrowInvalid as error:
        raise ValueOverflow(
            f"A quantity is larger than any that can be stored: {error}", next_step="Look for absurd quantities"
        ) from error


def with_longs(table: pa.Table, **columns: Longs) -> pa.Table:
    """The table with these columns added or replaced."""
    for name, values in columns.items():
        column = pa.array(values, pa.int64())
        number = table.schema.get_field_index(name)
        table = table.append_column(name, column) if number < 0 else table.set_column(number, name, column)
    return table


def groups(table: pa.Table, *names: str) -> Iterator[tuple[tuple[Any, ...], Longs]]:
    """The distinct values of some columns of low cardinality, each with its row numbers."""
    columns = [table[name].combine_chunks().dictionary_encode() for name in names]
    codes = np.zeros(table.num_rows, np.int64)
    for column in columns:
        codes = codes * len(column.dictionary) + column.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    firsts = np.flatnonzero(np.diff(codes[order], prepend=-1))  # codes are never negative
    for first, last in pairwise([*firsts.tolist(), len(order)]):
        yield tuple(column[order[first]].as_py() for column in columns), order[first:last]


def period_ends(events: pa.Table, book: Book) -> Longs:
    """The ends of the events' periods, by their plans' cycles."""
    times_us, ends_us = longs(events["time"]), np.zeros(events.num_rows, np.int64)
    for (plan,), rows in groups(events, "plan"):
        ends_us[rows] = book.plans[plan].cycle.ends(times_us[rows])
    return ends_us


def ranks(table: pa.Table, *names: str) -> Longs:
    """A number for each row, from 0 on, that sorts like the values of these columns, strings by their UTF-8."""
    found, count = np.zeros(table.num_rows, np.int64), 1
    for name in names:
        column = table[name].combine_chunks().dictionary_encode()
        order = pc.sort_indices(column.dictionary).to_numpy()
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        if count * len(order) > RANKS_MAX:
            count, found = _closed_up(found)
        found = found * len(order) + rank[column.indices.to_numpy()]
        count *= len(order)
    return found


def _closed_up(found: Longs) -> tuple[int, Longs]:
    """Dense ranks, and their count."""
    values, closed_up = np.unique(found, return_inverse=True)
    return len(values), closed_up.astype(np.int64)


_LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Amounts:
    """Prices lines by the plan versions that the lines refer to by id."""

    plans: Mapping[str, PlanVersion]

    def amounts(self, lines: pa.Table, quantities: Longs) -> Longs:
        """The exact micros of quantities, each by its line's `plan` and `type`. ValueOverflow beyond 64 bits."""
        found = np.zeros(lines.num_rows, np.int64)
        for (plan, type_), rows in groups(lines, "plan", "type"):
            found[rows] = self.plans[plan].prices[type_].values(quantities[rows])
        return found

    def charged(self, lines: pa.Table, amounts: Longs) -> Longs:
        """Exact micros, each rounded to its currency's minor unit by the rule of its line's `plan`."""
        found = np.zeros(lines.num_rows, np.int64)
        for (plan,), rows in groups(lines, "plan"):
            found[rows] = round_all(amounts[rows], self.plans[plan].currency, self.plans[plan].rounding)
        return found

    def rules(self, plans: pa.ChunkedArray) -> Longs:
        """The rounding rule of each plan, as its index in `ROUNDINGS`."""
        found = plans.combine_chunks().dictionary_encode()
        places = [ROUNDINGS.index(self.plans[plan].rounding) for plan in found.dictionary.to_pylist()]
        return np.asarray(np.array(places, np.int64)[found.indices.to_numpy()], np.int64)

    def with_currency(self, lines: pa.Table) -> pa.Table:
        """Lines with the `currency` of their `plan`."""
        plans = lines["plan"].combine_chunks().dictionary_encode()
        currencies = [self.plans[plan].currency for plan in plans.dictionary.to_pylist()]
        return lines.append_column("currency", pa.array(currencies, pa.string()).take(plans.indices))


def round_totals(amounts: Longs, currencies: pa.Array, lowest: Longs, highest: Longs) -> Longs:
    """Totals, each rounded by the rule of `total_rounding`, given the lowest and highest rule of its lines."""
    rules = np.where(lowest == highest, lowest, ROUNDINGS.index(TOTAL_ROUNDING))
    found = np.zeros(len(amounts), np.int64)
    for (currency, rule), rows in groups(pa.table({"currency": currencies, "rule": rules}), "currency", "rule"):
        found[rows] = round_all(amounts[rows], currency, ROUNDINGS[rule])
    return found


def round_all(amounts: Longs, currency: str, rule: Rounding) -> Longs:
    """`round_micros` of every amount; MoneyOverflow as there."""
    minor_micros = 10 ** (MICROS_DIGITS - minor_digits(currency))
    magnitudes = np.abs(amounts)  # abs(-2**63) stays negative, and fails the check below too
    if len(amounts) and not 0 <= magnitudes.min() <= magnitudes.max() <= _LONG_MAX - minor_micros:
        return np.array([round_micros(amount, currency, rule) for amount in amounts.tolist()], np.int64)
    whole, rest = np.divmod(magnitudes, minor_micros)
    return np.asarray(np.sign(amounts) * (whole + _goes_up(rule, whole, rest, minor_micros)) * minor_micros, np.int64)


def _goes_up(rule: Rounding, whole: Longs, rest: Longs, minor_micros: int) -> npt.NDArray[np.bool_]:
    match rule:
        case "down":
            return np.zeros(len(rest), np.bool_)
        case "up":
            return rest > 0
        case "half-up":
            return 2 * rest >= minor_micros
        case "half-even":
            half = (2 * rest == minor_micros) & (whole % 2 == 1)
            return np.asarray((2 * rest > minor_micros) | half, np.bool_)
