"""A story to bill: three customers, two months that are sealed, late events, duplicates and bad ones."""

from __future__ import annotations

from datetime import UTC, datetime

from stateside.billing.model import assignment, clock_tick, usage
from stateside.billing.plans.file import plan_event
from stateside.journal import Event
from tests.billing.billed import version


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def call(id_: str, customer: str, day: str, quantity: int) -> Event:
    return usage(id_, customer, "call", at(day), quantity)


OPENING = [
    plan_event(version(effective_us=at("2025-12-02")), "p1", at("2025-12-01")),
    plan_event(version("gold", 2, currency="USD", effective_us=at("2025-12-02")), "p2", at("2025-12-01")),
    *(
        assignment(f"a-{name}", name, plan, at("2025-12-02"), at("2025-12-01"))
        for name, plan in (("emma", "basic"), ("noah", "gold"), ("olga", "basic"))
    ),
]
BATCHES: list[tuple[str, list[Event]]] = [  # each appended on a day
    ("2025-12-01", OPENING),
    ("2026-01-10", [call("1", "emma", "2026-01-10", 98), call("2", "noah", "2026-01-09", 103)]),
    (
        "2026-01-20",
        [
            call("3", "nobody", "2026-01-20", 1),
            call("4", "emma", "2026-09-09", 1),  # which must not close anybody's month
            Event("5", "emma", "call", at("2026-01-20"), {"quantity": -1}),
        ],
    ),
    ("2026-02-10", [call("6", "emma", "2026-02-10", 50), call("7", "emma", "2026-01-31", 1)]),
    (
        "2026-02-11",  # seals January, with the call that comes at the last moment: it is not late
        [clock_tick(at("2026-02-11"), "c1"), call("13", "noah", "2026-01-31", 3)],
    ),
    (
        "2026-02-12",
        [
            call("8", "emma", "2026-01-15", 4),
            call("9", "olga", "2026-01-15", 106),
            call("8", "emma", "2026-01-15", 4),
        ],
    ),
    ("2026-02-13", [call("10", "olga", "2026-01-16", 3), call("9", "olga", "2026-01-15", 106)]),
    ("2026-03-10", [call("11", "noah", "2026-03-10", 7), call("12", "ghost", "2026-03-10", 1)]),
    ("2026-03-11", [clock_tick(at("2026-03-11"), "c2")]),  # seals February
]
ENDS = [sum(len(events) for _, events in BATCHES[: number + 1]) for number in range(len(BATCHES))]
