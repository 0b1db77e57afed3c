"""The bill client: keeps asking for bills, and records latencies, ages and failures in bounded samples."""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections import deque
from typing import Any

from stateside.core.errors import StatesideError
from stateside.core.positions import Position
from stateside.serving.clients import Client

KEPT_MAX = 100_000  # half an hour of answers; beyond that, a uniform sample


class Sample:
    """A bounded uniform sample of values (reservoir sampling), with the count and maximum of all values."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self.count = 0
        self._kept, self._kept_max = array("d"), kept_max
        self._largest = 0.0
        self._random = random.Random(0)

    def add(self, value: float) -> None:
        self.count += 1
        self._largest = max(self._largest, value)
        if len(self._kept) < self._kept_max:
            self._kept.append(value)
        elif (place := self._random.randrange(self.count)) < self._kept_max:
            self._kept[place] = value

    def quantiles(self) -> dict[str, float]:
        """The median, the 99th percentile, and the maximum."""
        ordered = sorted(self._kept) or [0]
        found = {"p50": ordered[len(ordered) // 2], "p99": ordered[len(ordered) * 99 // 100], "max": self._largest}
        return {name: round(value, 2) for name, value in found.items()}


PAUSE_S = 0.01
READY_PAUSE_S = 0.1
FAILURES_KEPT = 5


def bill_path(customer: str) -> str:
    return f"/v1/customers/{customer}/bill"


class BillClient:
    """Asks for the bills of random customers, in a thread, until stopped.

    Any result other than a stamped answer is a failed request: an error, no answer, no JSON, no stamp.
    """

    def __init__(self, url: str, customers: int, seed: int) -> None:
        self.latencies_ms, self.ages_ms = Sample(), Sample()
        self.failed = 0
        self.failures: deque[str] = deque(maxlen=FAILURES_KEPT)
        self.stamp: dict[str, Any] | None = None
        self._client = Client(url, direct=True)  # direct: a failed request must be counted, not hidden by a retry
        self._customers = customers
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="asker", daemon=True)

    def wait_until_ready(self, position: Position, timeout_s: float) -> bool:
        """Whether an answer covers the position in time; requests before that are not counted.

        Only a batch of this run can reach the position, so an old replica in the folder does not pass.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                self.stamp = self._client.get(bill_path("c0"), min_position=position, wait_ms=100)["stamp"]
                return True
            except Exception:
                time.sleep(READY_PAUSE_S)
        return False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            self._ask(f"c{self._random.randrange(self._customers)}")

    def _ask(self, customer: str) -> None:
        began_s = time.monotonic()
        try:
            stamp = self._client.get(bill_path(customer))["stamp"]
            age_ms = int(stamp["age_ms"])
        except Exception as error:  # any error: the request was not answered as promised
            self.failed += 1
            self.failures.append(str(error) if isinstance(error, StatesideError) else f"no stamped answer: {error!r}")
            return
        self.latencies_ms.add((time.monotonic() - began_s) * 1_000)
        self.ages_ms.add(age_ms)
        self.stamp = stamp
