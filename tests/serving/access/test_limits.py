"""Room for requests: a rate, a number at a time, and memory that is bounded whoever asks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import TooManyRequests
from stateside.serving.access import limits
from stateside.serving.access.limits import BURST_S, Buckets, RateLimits, Room, network


class Seconds:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@given(st.floats(0.5, 1_000), st.lists(st.floats(0, 3), max_size=60))
def test_a_bucket_never_gives_more_than_a_burst_and_the_rate(rate_per_s: float, pauses_s: list[float]) -> None:
    clock = Seconds()
    buckets = Buckets(rate_per_s, clock)
    given_ = 0
    for pause_s in pauses_s:
        clock.now_s += pause_s
        given_ += sum(buckets.take("a") == 0 for _ in range(40))
        assert given_ <= max(1.0, rate_per_s * BURST_S) + clock.now_s * rate_per_s + 1e-6


def test_who_was_told_to_wait_finds_room_after_that_time() -> None:
    clock = Seconds()
    room = Room(RateLimits(rate_per_s=0.5), clock)
    room.enter("a")
    with pytest.raises(TooManyRequests) as caught:
        room.enter("a")
    assert caught.value.retry_after_s == 2
    assert caught.value.problem()["retry_after_s"] == 2
    room.enter("b")  # others have room
    clock.now_s += caught.value.retry_after_s
    room.enter("a")


def test_so_many_are_under_way_at_a_time_and_who_leaves_makes_room() -> None:
    room = Room(RateLimits(running_max=2))
    room.enter("a")
    room.enter("a")
    with pytest.raises(TooManyRequests, match="2 requests"):
        room.enter("a")
    room.enter("b")
    room.leave("a")
    room.enter("a")
    for who in ("a", "a", "b"):
        room.leave(who)
    assert room._running == {}


def test_without_a_rate_there_is_no_end_of_them() -> None:
    room = Room(RateLimits())
    for _ in range(100_000):
        room.enter("a")
        room.leave("a")


def test_many_addresses_take_bounded_memory_and_the_busy_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUCKETS_MAX", 100)
    clock = Seconds()
    buckets = Buckets(1, clock)
    for number in range(10_000):
        buckets.take(f"10.0.{number // 256}.{number % 256}")
        refused = buckets.take("busy") > 0
    assert len(buckets) == 100
    assert refused, "who asks all the time is not forgotten for those who ask once"


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ("127.0.0.1:5123", "127.0.0.1"),
        ("[::1]:5123", "::/64"),
        ("[2001:db8:1:2:3:4:5:6]:5123", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]:1", "2001:db8:1:2::/64"),
        ("[fe80::1%2]:80", "fe80::/64"),
        ("[::ffff:10.0.0.7]:5123", "10.0.0.7"),
    ],
)
def test_an_address_is_counted_without_its_port_and_of_ipv6_the_network(client: str, expected: str) -> None:
    assert network(client) == expected
