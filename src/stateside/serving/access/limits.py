"""Rate limits: requests per second, and requests under way, for each principal or each address.

A *token bucket* holds two seconds' worth of requests; each request takes one, and the bucket refills at the rate. So a
burst passes, and a steady stream above the rate does not. Every worker process counts for itself.

Memory is bounded: the newest `BUCKETS_MAX` buckets are kept (a full bucket equals a new one), and the requests under
way are bounded by the server's connections. All addresses of one IPv6 network (/64), the usual assignment to one
subscriber, share a bucket.
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
    """Per principal or address: requests per second (None: unlimited), and requests under way, streams included."""

    rate_per_s: float | None = None
    running_max: int = RUNNING_MAX

    def or_default(self) -> RateLimits:
        """These limits with the default rate if they have none, for servers that other machines can reach."""
        return self if self.rate_per_s is not None else RateLimits(RATE_PER_S, self.running_max)


NO_RATE: Final = RateLimits()


@dataclass(slots=True)
class _Bucket:
    left: float
    filled_s: float


class Buckets:
    """A token bucket for each principal or address."""

    def __init__(self, rate_per_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._rate_per_s, self._now_s = rate_per_s, now_s
        self._size = max(1.0, rate_per_s * BURST_S)
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, who: str) -> float:
        """Take one request out; returns 0 on success, else the seconds until the next one is available."""
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
    """Admission control: counts requests under way and applies the rate."""

    def __init__(self, limits: RateLimits, now_s: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._buckets = None if limits.rate_per_s is None else Buckets(limits.rate_per_s, now_s)
        self._running: dict[str, int] = {}

    def enter(self, who: str) -> None:
        """Count a request as begun; TooManyRequests if over a limit. Each `enter` needs a `leave`."""
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
        """Count a request as ended."""
        running = self._running[who] - 1
        if running:
            self._running[who] = running
        else:
            del self._running[who]


@lru_cache(maxsize=8_192)  # connections stay open and send many requests
def network(client: str) -> str:
    """The address of `address:port`, without the port; for IPv6 the /64 network."""
    host = client.rpartition(":")[0].strip("[]")
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _NETWORK_BITS), strict=False))
