"""Billing periods: calendar months in the time zone of the bill, with its summer time and leap years."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from stateside.billing.model import TIME_ZONE

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """A calendar month of the bill's time zone. `start_us` belongs to it, `end_us` to the next one."""

    year: int
    month: int

    @classmethod
    def containing(cls, time_us: int) -> Month:
        """The month that a moment lies in."""
        local = (_EPOCH + timedelta(microseconds=time_us)).astimezone(ZoneInfo(TIME_ZONE))
        return cls(local.year, local.month)

    @classmethod
    def ending(cls, end_us: int) -> Month:
        """The month that ends at this moment."""
        found = cls.containing(end_us - 1)
        assert found.end_us == end_us, f"no month ends at {end_us}"
        return found

    @property
    def start_us(self) -> int:
        """The month's first microsecond."""
        start = datetime(self.year, self.month, 1, tzinfo=ZoneInfo(TIME_ZONE))
        return (start - _EPOCH) // timedelta(microseconds=1)

    @property
    def end_us(self) -> int:
        """The first microsecond after the month."""
        return self.next().start_us

    def next(self) -> Month:
        """The month after this one."""
        return Month(self.year + self.month // 12, self.month % 12 + 1)

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.month:02d}"
