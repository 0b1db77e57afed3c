"""The witness: a client that keeps asking, and records answers, their latencies and ages, and every server's failures.

The witness asks in turn through the failover client, like an application, and each server directly; a single server
only directly. Every single attempt counts: a failure hidden by a retry at another server is still a failure. `proof`
compares the recorded answers with the journal, each at its own stamp.
"""

from __future__ import annotations

import json
import random
import threading
import time
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from stateside.billing.model import VIEW
from stateside.core.errors import StatesideError
from stateside.serving.clients import Client
from stateside.serving.clients.steps import NoReply, Reply, Send
from stateside.serving.clients.transport import error_of

PAUSE_S = 0.02
FAILURES_KEPT = 5
SAMPLE_MAX = 100_000  # half an hour of answers; beyond that, a uniform sample
DEADLINE_S = 5.0  # a request without an answer by then has failed
FRESH_MS_MAX = 5_000  # a fresh answer is no older

Document = Mapping[str, Any]
Ask = Callable[[Client, str], Document]  # asks for a customer; returns the stamped answer


class Sample:
    """A bounded uniform sample of values (reservoir sampling), with the count and maximum of all values."""

    def __init__(self, kept_max: int = SAMPLE_MAX) -> None:
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


class LongestSilence:
    """The longest interval between two occurrences of a frequent event."""

    def __init__(self, began_s: float) -> None:
        self._last_s = began_s
        self._longest_s = 0.0

    def broken(self, now_s: float) -> None:
        """Record an occurrence."""
        self._longest_s = self.longest_s(now_s)
        self._last_s = now_s

    def longest_s(self, now_s: float) -> float:
        """The longest interval so far, the current one included."""
        return max(self._longest_s, now_s - self._last_s)


class Seen:
    """The observations of a witness: answered and failed requests, and the longest silences.

    `server_errors` counts the failures of single servers, by server and reason, which no retry excuses. `unreached` has
    the times at which a single server did not reply at all, like a killed one.
    """

    def __init__(self, began_s: float) -> None:
        self.latencies_ms, self.ages_ms = Sample(), Sample()
        self.stamp: Document | None = None  # of the last answer
        self.failed = 0
        self.failures: deque[str] = deque(maxlen=FAILURES_KEPT)
        self.server_errors: Counter[str] = Counter()
        self.unreached: defaultdict[str, list[float]] = defaultdict(list)
        self._any, self._fresh = LongestSilence(began_s), LongestSilence(began_s)
        self._ended_s = began_s

    @property
    def answered(self) -> int:
        return self.ages_ms.count

    def note_answer(self, now_s: float, age_ms: int, latency_ms: float = 0.0) -> None:
        """Record an answer of this age."""
        self.ages_ms.add(age_ms)
        self.latencies_ms.add(latency_ms)
        self._any.broken(now_s)
        if age_ms <= FRESH_MS_MAX:
            self._fresh.broken(now_s)
        self._ended_s = now_s

    def note_failure(self, now_s: float, why: str) -> None:
        """Record a request that was not answered as promised."""
        self.failed += 1
        self.failures.append(why)
        self._ended_s = now_s

    def note_attempt(self, url: str, now_s: float, got: Reply | NoReply) -> None:
        """Record a failed or missing reply of a single server, whatever the outcome of the request."""
        if isinstance(got, NoReply):
            self.unreached[url].append(now_s)
        else:
            self.note_server_error(url, error_of(got, url))

    def note_server_error(self, url: str, error: Exception) -> None:
        """Record an invalid reply of a single server."""
        self.server_errors[f"{url}: {_told(error)}"] += 1

    def attempts_failed(self) -> int:
        """The number of failed attempts at single servers, of any kind."""
        return self.server_errors.total() + sum(map(len, self.unreached.values()))

    @property
    def no_answer_s(self) -> float:
        """The longest time without an answer."""
        return self._any.longest_s(self._ended_s)

    @property
    def no_fresh_answer_s(self) -> float:
        """The longest time without a fresh answer."""
        return self._fresh.longest_s(self._ended_s)


def bill_path(customer: str) -> str:
    return f"/v1/customers/{customer}/bill"


def running_bill(client: Client, customer: str) -> Document:
    """Ask for a customer's running bill, which needs only a replica."""
    return client.rows(VIEW, customer, source="live").document


def whole_bill(client: Client, customer: str) -> Document:
    """Ask for a customer's bill with all documents, which needs the invoice store too."""
    return client.get(bill_path(customer))


class AnswerLog:
    """The answers of a scenario as JSON lines on disk, so that memory stays bounded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w")

    def add(self, question: Ask, customer: str, document: Document) -> None:
        self._file.write(json.dumps([question.__name__, customer, document]) + "\n")

    def close(self) -> None:
        self._file.close()

    def answers(self, question: Ask) -> Iterator[tuple[str, Document]]:
        """The answers to this question, each with its customer."""
        with self._path.open() as lines:
            for name, customer, document in map(json.loads, lines):
                if name == question.__name__:
                    yield customer, document


class Listening(Client):
    """A client that reports each failed attempt at a server, even if another server answered afterwards."""

    def __init__(self, urls: str | Sequence[str], failed: Callable[[str, Reply | NoReply], None], **how: Any) -> None:
        super().__init__(urls, **how)
        self._failed = failed

    def _send(self, step: Send) -> Reply | NoReply:
        got = super()._send(step)
        if isinstance(got, NoReply) or got.status >= 500:
            self._failed(step.url, got)
        return got


class Witness:
    """Asks for the bills of random customers, in a thread until stopped.

    Any result other than a stamped answer is a failed request: an error, no answer, no JSON, no stamp.
    """

    def __init__(
        self,
        urls: Sequence[str],
        customers: int,
        seed: int,
        questions: Sequence[Ask],
        record: AnswerLog | None = None,
        *,
        deadline_s: float = DEADLINE_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        one = len(urls) == 1
        self._client = Listening(urls, self._note_attempt, direct=one, deadline_s=deadline_s)
        others = () if one else urls
        self._single = {url: Listening(url, self._note_attempt, direct=True, deadline_s=deadline_s) for url in others}
        self._customers, self._questions, self._record, self._pause_s = customers, questions, record, pause_s
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="witness", daemon=True)
        self.seen = Seen(time.monotonic())

    def start(self) -> None:
        """Begin to ask and to count."""
        self.seen = Seen(time.monotonic())
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._record:
            self._record.close()
        for client in (self._client, *self._single.values()):
            client.close()

    def _run(self) -> None:
        turns = cycle([None, *self._single])
        while not self._stop.wait(self._pause_s):
            question, customer = self._random.choice(self._questions), f"c{self._random.randrange(self._customers)}"
            url = next(turns)
            if url is None:
                self._ask(question, customer)
            else:
                self._ask_one(url, question, customer)

    def _ask(self, question: Ask, customer: str) -> None:
        began_s = time.monotonic()
        try:
            age_ms = self._answered(self._client, question, customer)
        except Exception as error:  # any error: the request was not answered as promised
            self.seen.note_failure(time.monotonic(), _told(error))
        else:
            now_s = time.monotonic()
            self.seen.note_answer(now_s, age_ms, (now_s - began_s) * 1_000)

    def _ask_one(self, url: str, question: Ask, customer: str) -> None:
        before = self.seen.attempts_failed()
        try:
            self._answered(self._single[url], question, customer)
        except Exception as error:
            if self.seen.attempts_failed() == before:  # an invalid reply, not counted yet
                self.seen.note_server_error(url, error)

    def _note_attempt(self, url: str, got: Reply | NoReply) -> None:
        self.seen.note_attempt(url, time.monotonic(), got)

    def _answered(self, client: Client, question: Ask, customer: str) -> int:
        """Ask, record the answer, and return its age."""
        document = question(client, customer)
        age_ms = int(document["stamp"]["age_ms"])
        self.seen.stamp = document["stamp"]
        if self._record:
            self._record.add(question, customer, document)
        return age_ms


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, StatesideError) else f"no stamped answer: {error!r}"
