"""The journal as the status tells it: where it ends, whether it lies in the folder or on Kafka.

    {"end": 1234, "segments": 2, "bytes": 56789}                on files
    {"end": 1240, "bytes": null, "trouble": null}               on Kafka: an offset, marks of transactions count too
    {"end": null, "bytes": null, "trouble": "The brokers …"}    on Kafka, and nobody knows
    null                                                        there is none here: another job's source, or none yet

Brokers that are away let a question wait for seconds. So they are asked in a thread of its own, by one at a time and at
most once in `ASK_S`, and who wants to know waits for `WAIT_S` at most. What was told lately counts, and nothing older.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from stateside.errors import StatesideError
from stateside.journal.kafka.placed import address_in
from stateside.journal.opened import open_journal
from stateside.journal.reader import Journal
from stateside.journal.segment import DurableEnd

ASK_S: Final = 1.0
WAIT_S: Final = 0.5
OLD_S: Final = 5.0

Document = dict[str, Any]


class JournalEnd:
    """Of one folder. Any thread may ask."""

    def __init__(self, folder: Path, open_: Callable[[Path], Journal] = open_journal) -> None:
        self._folder, self._open = folder, open_
        self._lock = threading.Lock()
        self._topic: tuple[str, TopicEnd] | None = None

    def now(self) -> Document | None:
        """As it stands in an answer; None if there is no journal here."""
        try:
            address = address_in(self._folder)
        except (OSError, StatesideError) as error:
            return _on_kafka(None, str(error))
        return _on_files(self._folder) if address is None else self._at(address).now()

    def _at(self, address: str) -> TopicEnd:
        with self._lock:
            if self._topic is None or self._topic[0] != address:
                self._topic = address, TopicEnd(lambda: self._open(self._folder))
            return self._topic[1]


class TopicEnd:
    """Where a topic ends. Its journal is opened by the first question."""

    def __init__(self, open_: Callable[[], Journal]) -> None:
        self._open = open_
        self._journal: Journal | None = None
        self._told = threading.Condition()
        self._asking, self._asked_s, self._told_s = False, float("-inf"), float("-inf")
        self._document = _on_kafka(None, None)

    def now(self) -> Document:
        """What the brokers said lately; if that is nothing, that they do not answer."""
        with self._told:
            now_s = time.monotonic()
            if not self._asking and now_s - self._asked_s >= ASK_S:
                self._asking, self._asked_s = True, now_s
                threading.Thread(target=self._ask, name="journal's end", daemon=True).start()
            if self._told.wait_for(self._is_known, WAIT_S):
                return self._document
        return _on_kafka(None, "The brokers do not answer")

    def _is_known(self) -> bool:
        return time.monotonic() - self._told_s < OLD_S

    def _ask(self) -> None:
        try:
            if self._journal is None:
                self._journal = self._open()
            document = _on_kafka(self._journal.end().one(), None)
        except Exception as error:  # whatever it is, it is told: nobody else waits for this thread
            document = _on_kafka(None, str(error) or type(error).__name__)
        with self._told:
            self._asking, self._told_s, self._document = False, time.monotonic(), document
            self._told.notify_all()


def _on_kafka(end: int | None, trouble: str | None) -> Document:
    return {"end": end, "bytes": None, "trouble": trouble}


def _on_files(folder: Path) -> Document | None:
    try:
        end = DurableEnd.read(folder)
        sizes = [path.stat().st_size for path in folder.glob("*.segment")]
    except (OSError, StatesideError):
        return None
    return None if end is None else {"end": end.offset, "segments": len(sizes), "bytes": sum(sizes)}
