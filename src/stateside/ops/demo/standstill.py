"""A standstill: for how long something that should move has not."""

from __future__ import annotations


class Standstill:
    """Is shown a value again and again, and says since when it has been the same."""

    def __init__(self, now_s: float) -> None:
        self._value: object = None
        self._since_s = now_s

    def lasted_s(self, value: object, now_s: float) -> float:
        """How long it has lasted, with this value now."""
        if value != self._value:
            self._value, self._since_s = value, now_s
        return now_s - self._since_s
