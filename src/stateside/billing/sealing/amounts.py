"""Amounts of many lines at once: what their quantities cost by their plans, and what of it is charged.

The numbers are those of `Steps.value` and `round_micros`, which say what is meant; only the way is another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateside.billing.money import MICROS_DIGITS, ROUNDINGS, TOTAL_ROUNDING, Rounding, minor_digits, round_micros
from stateside.billing.plans.file import PlanVersion
from stateside.billing.sealing.columns import Longs, groups

_LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Amounts:
    """The versions of plans, by their ids, that lines refer to."""

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
        """The rule by which each of these plans rounds, as its place in `ROUNDINGS`."""
        found = plans.combine_chunks().dictionary_encode()
        places = [ROUNDINGS.index(self.plans[plan].rounding) for plan in found.dictionary.to_pylist()]
        return np.asarray(np.array(places, np.int64)[found.indices.to_numpy()], np.int64)

    def with_currency(self, lines: pa.Table) -> pa.Table:
        """Lines with the `currency` of their `plan`."""
        plans = lines["plan"].combine_chunks().dictionary_encode()
        currencies = [self.plans[plan].currency for plan in plans.dictionary.to_pylist()]
        return lines.append_column("currency", pa.array(currencies, pa.string()).take(plans.indices))


def round_totals(amounts: Longs, currencies: pa.Array, lowest: Longs, highest: Longs) -> Longs:
    """Totals of lines, each rounded by the rule of `total_rounding`, given the lowest and highest rule of its lines."""
    rules = np.where(lowest == highest, lowest, ROUNDINGS.index(TOTAL_ROUNDING))
    found = np.zeros(len(amounts), np.int64)
    for (currency, rule), rows in groups(pa.table({"currency": currencies, "rule": rules}), "currency", "rule"):
        found[rows] = round_all(amounts[rows], currency, ROUNDINGS[rule])
    return found


def round_all(amounts: Longs, currency: str, rule: Rounding) -> Longs:
    """`round_micros` of every amount; MoneyOverflow as there."""
    minor_micros = 10 ** (MICROS_DIGITS - minor_digits(currency))
    magnitudes = np.abs(amounts)  # that of the lowest number is negative: it is beyond the check's limit too
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
