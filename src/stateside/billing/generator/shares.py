"""How unruly the usage is: which shares of it come delayed, too late, twice, or are no usage at all."""

from __future__ import annotations

from dataclasses import dataclass

from stateside.errors import RequestInvalid


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the usage events, each from 0 to 1.

    `delayed`: comes in after up to almost the grace time, so out of order, some of it after its period's end.
    `late`: comes in when its period is closed for good; of the usage in periods that close. `duplicate`: comes in
    twice. `bad`: must become a dead letter; at least one of each reason, unless it is 0.
    """

    delayed: float = 0.15
    late: float = 0.03
    duplicate: float = 0.01
    bad: float = 0.01

    def __post_init__(self) -> None:
        for name in ("delayed", "late", "duplicate", "bad"):
            if not 0 <= getattr(self, name) <= 1:
                raise RequestInvalid(
                    f"The share of {name} events is {getattr(self, name)!r}", next_step="Give a number from 0 to 1"
                )
