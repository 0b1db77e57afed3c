"""The witness: a client that keeps asking while things break, and remembers for how long nobody answered."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from stateside.billing.model import VIEW
from stateside.errors import StatesideError
from stateside.ops.demo.asker import FAILURES_KEPT, bill_path
from stateside.serving.clients import Client
from stateside.serving.stamp import Stamp

PAUSE_S = 0.02
DEADLINE_S = 5.0  # who has no answer by then counts the request as failed
FRESH_MS_MAX = 5_000  # an answer that is older than this is not fresh

Ask = Callable[[Client, str], int]  # asks for a customer; how old the answer is, in milliseconds


class Silence:
    """The longest time in which something that should happen all the time did not."""

    def __init__(self, began_s: float) -> None:
        self._last_s = began_s
        self._longest_s = 0.0

    def broken(self, now_s: float) -> None:
        """It happens now."""
        self._longest_s = self.longest_s(now_s)
        self._last_s = now_s

    def longest_s(self, now_s: float) -> float:
        """The longest one so far, the present one included."""
        return max(self._longest_s, now_s - self._last_s)


class Seen:
    """What a witness has seen: how many requests were answered and failed, and the longest silences."""

    def __init__(self, began_s: float) -> None:
        self.answered = 0
        self.failed = 0
        self.failures: deque[str] = deque(maxlen=FAILURES_KEPT)
        self._any, self._fresh = Silence(began_s), Silence(began_s)
        self._ended_s = began_s

    def note_answer(self, now_s: float, age_ms: int) -> None:
        """An answer came, and was so old."""
        self.answered += 1
        self._any.broken(now_s)
        if age_ms <= FRESH_MS_MAX:
            self._fresh.broken(now_s)
        self._ended_s = now_s

    def note_failure(self, now_s: float, why: str) -> None:
        """A request was not answered as promised."""
        self.failed += 1
        self.failures.append(why)
        self._ended_s = now_s

    @property
    def no_answer_s(self) -> float:
        """The longest time without an answer."""
        return self._any.longest_s(self._ended_s)

    @property
    def no_fresh_answer_s(self) -> float:
        """The longest time without an answer that was fresh."""
        return self._fresh.longest_s(self._ended_s)


def running_bill_age_ms(client: Client, customer: str) -> int:
    """Ask for a customer's running bill, which needs nothing but a replica."""
    return client.rows(VIEW, customer, source="live").stamp.age_ms


def whole_bill_age_ms(client: Client, customer: str) -> int:
    """Ask for a customer's bill with all documents, which needs the invoice store too."""
    return Stamp.of(client.get(bill_path(customer))["stamp"]).age_ms


class Witness:
    """Asks for one random customer's bill after the other, in a thread, of whichever server answers."""

    def __init__(self, urls: Sequence[str], customers: int, seed: int, questions: Sequence[Ask]) -> None:
        self._client = Client(urls, deadline_s=DEADLINE_S)
        self._customers, self._questions = customers, questions
        self._random, self._asking = random.Random(seed), threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="witness", daemon=True)

    def start(self) -> None:
        """Begin to ask, and to count."""
        self.seen = Seen(time.monotonic())
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._client.close()

    @contextmanager
    def without(self, question: Ask) -> Iterator[None]:
        """In here this one is not asked: it cannot be answered. One that is under way has its answer before."""
        with self._asking:
            before, self._questions = self._questions, [one for one in self._questions if one is not question]
        try:
            yield
        finally:
            self._questions = before

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            with self._asking:
                self._ask(self._random.choice(self._questions), f"c{self._random.randrange(self._customers)}")

    def _ask(self, question: Ask, customer: str) -> None:
        try:
            age_ms = question(self._client, customer)
        except Exception as error:  # whatever it is, the request was not answered as promised
            told = str(error) if isinstance(error, StatesideError) else f"no stamped answer: {error!r}"
            self.seen.note_failure(time.monotonic(), told)
        else:
            self.seen.note_answer(time.monotonic(), age_ms)
