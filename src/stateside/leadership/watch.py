"""What a standby has seen of a lease, by its own clock."""

from __future__ import annotations

from dataclasses import dataclass

LOOKS_MIN = 4  # of a gap between two looks only that part of the whole time counts


@dataclass(slots=True)
class Watch:
    """For how long something has been seen unchanged. Time in which it could not be seen does not count.

    Nor does most of the time in which nobody looked: who watches may have been paused, and what it watches with it, on
    the same machine or by the same storage, so that no sign could be given. Of a gap between two looks a quarter of the
    time that is waited for counts, and not more. Who is merely slow, and looks seldom, so comes to an end all the same.
    """

    _seen: object = None
    _looked_s: float | None = None
    _unchanged_s: float = 0.0

    def look(self, sign: object, now_s: float, enough_s: float) -> bool:
        """This is what it looks like now; whether it surely has for `enough_s`."""
        if self._looked_s is None or sign != self._seen:
            self._seen, self._unchanged_s = sign, 0.0
        else:
            self._unchanged_s += min(now_s - self._looked_s, enough_s / LOOKS_MIN)
        self._looked_s = now_s
        return self._unchanged_s >= enough_s

    def changed(self, sign: object) -> bool:
        """Whether it was seen before, and looked different."""
        return self._looked_s is not None and sign != self._seen

    def forget(self) -> None:
        """It cannot be seen: begin anew with the next look."""
        self._looked_s = None
