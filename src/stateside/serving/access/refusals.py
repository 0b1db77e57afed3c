"""The log of refusals: who was turned away, from what, and why. `refusals.jsonl` in the served folder, a line each.

    {"time": "2026-01-31T…Z", "status": 403, "code": "access-denied", "who": "emma's page", "address": "10.0.0.7",
     "method": "GET", "path": "/v1/customers/ben/bill", "why": "This is not data…", "trace": "4bf92f35…"}

`who` is a name whose token was verified, or null: what somebody only claims is not written. Neither are the token, the
other headers, or what follows the question mark. Only its owner can read the file. When it is as large as `BYTES_MAX`
it becomes `refusals.1.jsonl`, that one `refusals.2.jsonl`, up to `OLDER_KEPT`. A worker writes at most `LINES_PER_S`
lines a second; the next line says how many it left out (`left_out`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from stateside.clock import Clock, SystemClock
from stateside.errors import StatesideError
from stateside.serving.access.limits import Buckets
from stateside.serving.stamp import iso_time
from stateside.storage import try_lock

BYTES_MAX: Final = 4 << 20
OLDER_KEPT: Final = 4
LINES_PER_S: Final = 200.0
PATH_CHARS_MAX: Final = 200
STATUSES: Final = frozenset({401, 403, 408, 413, 429})
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked, as far as it is written down."""

    method: str
    path: str
    address: str
    traceparent: str | None = None

    def trace(self) -> str | None:
        """The trace's id, if the header is what W3C says."""
        matched = _TRACEPARENT.fullmatch(self.traceparent or "")
        return None if matched is None else matched[1]


class RefusalLog:
    """Writes the log. Several processes may write to one file: a line is written at once, at its end."""

    def __init__(self, path: Path, clock: Clock | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock or SystemClock()
        self._buckets, self._left_out = Buckets(LINES_PER_S, now_s), 0

    def note(self, error: StatesideError, who: str | None, asked: Asked) -> None:
        """Write a line, if the error is a refusal. OSError if it cannot be written."""
        if error.status not in STATUSES:
            return
        if self._buckets.take("lines") > 0:
            self._left_out += 1
            return
        self._append(self._line(error, who, asked))
        self._left_out = 0

    def _line(self, error: StatesideError, who: str | None, asked: Asked) -> bytes:
        line = {
            "time": iso_time(self._clock.now_us()),
            "status": error.status,
            "code": error.code,
            "who": who,
            "address": asked.address,
            "method": asked.method,
            "path": asked.path[:PATH_CHARS_MAX],
            "why": error.what,
            "trace": asked.trace(),
        }
        return orjson.dumps(line | ({"left_out": self._left_out} if self._left_out else {})) + b"\n"

    def _append(self, line: bytes) -> None:
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
            found = os.fstat(handle)
        finally:
            os.close(handle)
        if found.st_size + len(line) > BYTES_MAX:
            self._turn_over(found.st_ino)

    def _turn_over(self, inode: int) -> None:
        """Set the full file aside; if another process does so, or has done so, that is enough."""
        lock = try_lock(self._path.with_name(f".{self._path.name}.lock"), mode=0o600)
        if lock is None:
            return
        try:
            if self._path.stat().st_ino != inode:
                return
            for number in range(OLDER_KEPT - 1, 0, -1):
                if self._older(number).exists():
                    self._older(number).replace(self._older(number + 1))
            self._path.replace(self._older(1))
        finally:
            os.close(lock)

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.stem}.{number}{self._path.suffix}")
