"""The generator: the same stream for the same seed, even sums, and every event in order and within the grace time."""

from collections import Counter
from itertools import islice, pairwise

import pytest

from stateside.billing.calendar import Month
from stateside.billing.generator import FIRST_MONTH, Arrival, Generator
from stateside.billing.model import AMOUNT_TYPES, GRACE_DAYS

GRACE_US = GRACE_DAYS * 24 * 3_600_000_000
MONTHS = [FIRST_MONTH, FIRST_MONTH.next(), FIRST_MONTH.next().next()]  # one of them with a change to summer time


def take(generator: Generator, count: int) -> list[Arrival]:
    return list(islice(generator.arrivals(), count))


@pytest.fixture(scope="module")
def arrivals() -> list[Arrival]:
    """Three whole months of seven customers, and the first days of the fourth."""
    generator = Generator(seed=5, customers=7, events_per_month=40)
    closed_us = MONTHS[-1].end_us + GRACE_US
    found = []
    for arrival in generator.arrivals():
        if arrival.arrival_us >= closed_us:
            return found
        found.append(arrival)
    raise AssertionError("the stream has no end")


def test_the_same_seed_gives_the_same_stream() -> None:
    assert take(Generator(1, 5, 10), 200) == take(Generator(1, 5, 10), 200)


def test_another_seed_gives_another_stream() -> None:
    assert take(Generator(1, 5, 10), 50) != take(Generator(2, 5, 10), 50)


def test_a_shorter_take_is_the_beginning_of_a_longer_one() -> None:
    generator = Generator(3, 4, 10)
    whole = take(generator, 150)
    for count in (0, 1, 39, 40, 41, 149):
        assert take(generator, count) == whole[:count]


@pytest.mark.parametrize(("customers", "events_per_month"), [(1, 1), (3, 1), (1, 2), (20, 7)])
def test_every_customer_spends_exactly_100_a_month(customers: int, events_per_month: int) -> None:
    count = 3 * customers * events_per_month
    micros, events = Counter[tuple[str, Month]](), Counter[tuple[str, Month]]()
    for arrival in take(Generator(9, customers, events_per_month), count):
        account = (arrival.event.entity, Month.containing(arrival.event.time_us))
        micros[account] += arrival.event.payload["amount_micros"]
        events[account] += 1
    whole = [account for account, number in events.items() if number == events_per_month]
    assert {micros[account] for account in whole} == {100_000_000}
    assert {customer for customer, _ in whole} == {f"c{number}" for number in range(customers)}
    assert max(events.values()) == events_per_month


def test_three_whole_months_have_all_their_events(arrivals: list[Arrival]) -> None:
    sums = Counter[tuple[str, Month]]()
    for arrival in arrivals:
        sums[arrival.event.entity, Month.containing(arrival.event.time_us)] += arrival.event.payload["amount_micros"]
    whole = {account: micros for account, micros in sums.items() if account[1] in MONTHS}
    assert whole == {(f"c{number}", month): 100_000_000 for number in range(7) for month in MONTHS}


def test_events_arrive_in_order_after_they_happened_and_within_the_grace_time(arrivals: list[Arrival]) -> None:
    assert all(one.arrival_us <= other.arrival_us for one, other in pairwise(arrivals))
    assert all(0 <= arrival.arrival_us - arrival.event.time_us < GRACE_US for arrival in arrivals)


def test_some_events_come_late_and_out_of_order(arrivals: list[Arrival]) -> None:
    late = [arrival for arrival in arrivals if arrival.late]
    assert 0 < len(late) < len(arrivals) / 10
    for arrival in late:
        assert Month.containing(arrival.arrival_us) == Month.containing(arrival.event.time_us).next()
    assert any(one.event.time_us > other.event.time_us for one, other in pairwise(arrivals))


def test_every_event_has_its_own_id_and_all_types_occur(arrivals: list[Arrival]) -> None:
    assert len({arrival.event.id for arrival in arrivals}) == len(arrivals)
    assert {arrival.event.type for arrival in arrivals} == set(AMOUNT_TYPES)


def test_the_stream_begins_in_the_month_it_is_told() -> None:
    (first,) = take(Generator(1, 5, 10, first=Month(2030, 10)), 1)
    assert Month.containing(first.event.time_us) == Month(2030, 10)
