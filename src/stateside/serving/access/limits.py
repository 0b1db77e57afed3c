"""Limits: how many requests each holder, or each address, may send in a second, and have under way at a time.

A *bucket* holds two seconds' worth of requests; each request takes one out, and they come back at the rate. So a burst
passes, and a steady stream above the rate does not. Every worker process counts for itself.

Memory is bounded, whoever asks: of buckets the newest `BUCKETS_MAX` are kept (a full one says nothing that a new one
would not), and what is under way is bounded by the connections that the server takes. The addresses of one IPv6 network
(/64), which is what one subscriber has, are one.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from stateside.core.errors import TooManyRequests

RATE_PER_S: Final = 5_000.0
RUNNING_MAX: Final = 2_000
BURST_S: Final = 2.0
BUCKETS_MAX: Final = 10_000
_NETWORK_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class RateLimits:
    """For each holder or address: requests a second (None: any number), and at a time, streams included."""

    rate_per_s: float | None = None
    running_max: int = RUNNING_MAX

    def or_default(self) -> RateLimits:
        """With a rate, if these have none: what somebody who can be reached by others has."""
        return self if self.rate_per_s is not None else RateLimits(RATE_PER_S, self.running_max)


NO_RATE: Final = RateLimits()


@dataclass(slots=True)
class _Bucket:
    left: float
    filled_s: float


class Buckets:
    """A bucket for each that asks."""

    def __init__(self, rate_per_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._rate_per_s, self._now_s = rate_per_s, now_s
        self._size = max(1.0, rate_per_s * BURST_S)
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, who: str) -> float:
        """Take one; 0 if there was one, else after how many seconds there will be."""
        bucket, now_s = self._bucket(who), self._now_s()
        bucket.left = min(self._size, bucket.left + (now_s - bucket.filled_s) * self._rate_per_s)
        bucket.filled_s = now_s
        if bucket.left >= 1:
            bucket.left -= 1
            return 0.0
        return (1 - bucket.left) / self._rate_per_s

    def __len__(self) -> int:
        return len(self._buckets)

    def _bucket(self, who: str) -> _Bucket:
        found = self._buckets.get(who)
        if found is not None:
            self._buckets.move_to_end(who)
            return found
        if len(self._buckets) >= BUCKETS_MAX:
            self._buckets.popitem(last=False)
        made = self._buckets[who] = _Bucket(self._size, self._now_s())
        return made


class Room:
    """Whether there is room for one more request."""

    def __init__(self, limits: RateLimits, now_s: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._buckets = None if limits.rate_per_s is None else Buckets(limits.rate_per_s, now_s)
        self._running: dict[str, int] = {}

    def enter(self, who: str) -> None:
        """A request begins; TooManyRequests if there is no room for it. Whoever entered leaves."""
        running = self._running.get(who, 0)
        if running >= self._limits.running_max:
            raise TooManyRequests(
                f"There are {running} requests of this holder or address under way, and no more may be",
                next_step="Wait until some are answered",
            )
        wait_s = 0.0 if self._buckets is None else self._buckets.take(who)
        if wait_s > 0:
            raise TooManyRequests(
                f"More than {self._limits.rate_per_s:g} requests a second of one holder or address",
                next_step="Ask again after the time that Retry-After says, and ask for many keys at once",
                retry_after_s=math.ceil(wait_s),
            )
        self._running[who] = running + 1

    def leave(self, who: str) -> None:
        """A request that entered has ended."""
        running = self._running[who] - 1
        if running:
            self._running[who] = running
        else:
            del self._running[who]


@lru_cache(maxsize=8_192)  # of connections that are kept open
def network(client: str) -> str:
    """Whose address `address:port` is: without the port, and of IPv6 the network."""
    host = client.rpartition(":")[0].strip("[]")
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _NETWORK_BITS), strict=False))
