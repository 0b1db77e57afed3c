"""A sample: how large many values were, in a bounded room, however long they go on to come."""

from __future__ import annotations

import random
from array import array

KEPT_MAX = 100_000  # half an hour of answers; of more, a fair choice


class Sample:
    """Values, of which all are counted and so many are kept: each with the same chance, once there are more."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self.count = 0
        self._kept, self._kept_max = array("d"), kept_max
        self._largest = 0.0
        self._random = random.Random(0)

    def add(self, value: float) -> None:
        """One more."""
        self.count += 1
        self._largest = max(self._largest, value)
        if len(self._kept) < self._kept_max:
            self._kept.append(value)
        elif (place := self._random.randrange(self.count)) < self._kept_max:
            self._kept[place] = value

    def quantiles(self) -> dict[str, float]:
        """The middle one, one that 99 of 100 do not exceed, and the largest of all."""
        ordered = sorted(self._kept) or [0]
        found = {"p50": ordered[len(ordered) // 2], "p99": ordered[len(ordered) * 99 // 100], "max": self._largest}
        return {name: round(value, 2) for name, value in found.items()}
