"""The asker: a client that keeps asking for bills, and remembers how it was answered."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from typing import Any

from stateside.errors import StatesideError
from stateside.serving.client import Client

PAUSE_S = 0.01
FAILURES_KEPT = 5


class Asker:
    """Asks for one random customer's bill after the other, in a thread, until it is stopped."""

    def __init__(self, url: str, customers: int, seed: int) -> None:
        self.latencies_ms: list[float] = []
        self.ages_ms: list[int] = []
        self.failed = 0
        self.failures: deque[str] = deque(maxlen=FAILURES_KEPT)
        self.stamp: dict[str, Any] | None = None
        self._client = Client(url)
        self._customers = customers
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="asker", daemon=True)

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Whether a first answer came in time: before it, requests are not counted."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                self.stamp = self._client.get("/v1/customers/c0/bill", wait_ms=100)["stamp"]
                return True
            except StatesideError:
                time.sleep(0.1)
        return False

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            self._ask(f"c{self._random.randrange(self._customers)}")

    def _ask(self, customer: str) -> None:
        began_s = time.monotonic()
        try:
            answer = self._client.get(f"/v1/customers/{customer}/bill")
        except StatesideError as error:
            self.failed += 1
            self.failures.append(str(error))
            return
        self.latencies_ms.append((time.monotonic() - began_s) * 1_000)
        self.stamp = answer["stamp"]
        self.ages_ms.append(answer["stamp"]["age_ms"])
