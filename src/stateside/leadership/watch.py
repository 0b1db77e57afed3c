"""What a standby has seen of a lease, by its own clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Watch:
    """For how long something has been seen unchanged. Time in which it could not be seen does not count."""

    _seen: object = None
    _since_s: float | None = None

    def look(self, sign: object, now_s: float) -> float:
        """This is what it looks like now; for how long it surely has."""
        if self._since_s is None or sign != self._seen:
            self._seen, self._since_s = sign, now_s
        return now_s - self._since_s

    def changed(self, sign: object) -> bool:
        """Whether it was seen before, and looked different."""
        return self._since_s is not None and sign != self._seen

    def forget(self) -> None:
        """It cannot be seen: begin anew with the next look."""
        self._seen, self._since_s = None, None
