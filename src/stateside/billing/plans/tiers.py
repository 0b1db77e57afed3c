"""Tiers: a price as a piecewise linear function of a period's quantity, with allowances as free tiers.

    {"key": ["basic@3", "call"], "steps": [[0, 0, 1], [6000, 90000, 60]]}    above, micros, per: 6,000 seconds are free

Stateside computes the amounts on bills with it, as a function in the view's table (`stateside.views.functions`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stateside.core.errors import ValueOverflow

_LONG_MAX = 2**63 - 1
_LONG_MIN = -(2**63)


@dataclass(frozen=True, slots=True)
class Tier:
    """A price per unit: the quantity above `above`, up to the next tier, costs `micros` per `per`."""

    above: int
    micros: int
    per: int

    def __post_init__(self) -> None:
        for name, value in (("above", self.above), ("micros", self.micros), ("per", self.per)):
            if not isinstance(value, int) or isinstance(value, bool) or not _LONG_MIN <= value <= _LONG_MAX:
                raise ValueError(f"a tier's {name} is {value!r}, not a whole number of 64 bits")
        if self.above < 0 or self.per < 1:
            raise ValueError(f"a tier begins at 0 or above and is per 1 or more, not above {self.above}, {self.per=}")


@dataclass(frozen=True, slots=True)
class Tiers:
    """Consecutive tiers, from a quantity of 0 on. Quantities below 0 count nothing."""

    name: ClassVar[str] = "steps"  # in the view's table of functions

    tiers: tuple[Tier, ...]

    def __post_init__(self) -> None:
        edges = [tier.above for tier in self.tiers]
        if not edges or edges[0] != 0 or any(low >= high for low, high in pairwise(edges)):
            raise ValueError(f"tiers begin above 0 and rise from one to the next, not as {edges}")

    def value(self, quantity: int) -> int:
        """The micros of a quantity: the sum over each tier's part, rounded down. ValueOverflow beyond 64 bits."""
        total = sum(part * tier.micros // tier.per for tier, part in self._parts(quantity))
        if not _LONG_MIN <= total <= _LONG_MAX:
            raise ValueOverflow(
                f"A quantity of {quantity} makes {total} micros, more than can be stored",
                next_step="Look for absurd prices or quantities",
            )
        return total

    def values(self, quantities: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The micros of many quantities: the same numbers as from `value`, and the same error."""
        if not len(quantities):
            return np.empty(0, np.int64)
        if not self._fits(int(quantities.max())):
            return np.array([self.value(quantity) for quantity in quantities.tolist()], np.int64)
        total = np.zeros(len(quantities), np.int64)
        for tier, up_to in self._edges():
            part = np.clip(quantities, tier.above, _LONG_MAX if up_to is None else up_to) - tier.above
            whole, rest = np.divmod(part, tier.per)
            total += whole * tier.micros + rest * tier.micros // tier.per
        return total

    def as_json(self) -> list[list[int]]:
        return [[tier.above, tier.micros, tier.per] for tier in self.tiers]

    @classmethod
    def parse(cls, content: Any) -> Tiers:
        """The tiers from a file; ValueError, with the reason, for invalid content."""
        try:
            return cls(tuple(Tier(*numbers) for numbers in content))
        except TypeError as error:
            raise ValueError(f"{content!r} are no tiers: {error}") from error

    def _edges(self) -> Iterator[tuple[Tier, int | None]]:
        """Each tier, and the quantity at which the next one takes over."""
        yield from zip(self.tiers, [*(tier.above for tier in self.tiers[1:]), None], strict=True)

    def _parts(self, quantity: int) -> Iterator[tuple[Tier, int]]:
        """Each tier with its part of the quantity."""
        for tier, up_to in self._edges():
            yield tier, max(0, (quantity if up_to is None else min(quantity, up_to)) - tier.above)

    def _fits(self, quantity_max: int) -> bool:
        """Whether no intermediate number exceeds 64 bits for quantities up to this one."""
        whole = sum(part * abs(tier.micros) // tier.per + abs(tier.micros) for tier, part in self._parts(quantity_max))
        return whole <= _LONG_MAX and all(abs(tier.micros) * tier.per <= _LONG_MAX for tier in self.tiers)
