"""Audits started over HTTP: one at a time, in a child process that runs `stateside audit`.

An audit changes nothing but the auditor's own ledger, so an audit is safe at any time. The last result is in a file,
for every worker and for the next server. If the file cannot be written, the error is logged, and only the worker that
ran the audit reports the result.

A running audit holds an exclusive lock; a check whether an audit runs takes a shared lock for a moment, and `start`
waits for that.

    audit/last.json     {"began": "2026-01-31T…Z", "ended": "…Z", "ok": true, "text": "events  1,234 = …"}
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from typing import Any, Final

from stateside.core import Clock, JsonFile, Layout, SystemClock, processes, try_lock
from stateside.core.errors import StatesideError
from stateside.serving import iso_time

AUDIT_S_MAX: Final = 3_600
TEXT_CHARS_MAX: Final = 20_000
LOOK_S_MAX: Final = 0.25  # a check holds its shared lock for less than this
_TRY_S: Final = 0.01
_FOUND_NOTHING, _FOUND_SOMETHING = 0, 1  # the command's exit codes; any other means that the audit did not finish

_RESULT: JsonFile[dict[str, Any]] = JsonFile("The result of the audit", dict, dict)
log = logging.getLogger(__name__)


class Audits:
    """The audits of a folder: one instance for each worker process."""

    def __init__(self, layout: Layout, clock: Clock | None = None) -> None:
        self._layout, self._clock = layout, clock or SystemClock()
        self._last, self._lock = layout.audit / "last.json", layout.audit / ".asked.lock"
        self._running: set[asyncio.Task[None]] = set()
        # the last result of this worker, if its file could not be written
        self._unwritten: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        """Whether an audit started over HTTP runs, in any worker, and the last result; None before the first."""
        return {"running": self._is_running(), "last": self._read()}

    async def start(self) -> dict[str, Any]:
        """Start an audit, unless one runs."""
        self._layout.audit.mkdir(parents=True, exist_ok=True)
        lock = await self._locked()
        if lock is not None:
            task = asyncio.get_running_loop().create_task(self._run(lock))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return {"running": True, "last": self._read()}

    async def _run(self, lock: int) -> None:
        try:
            began = iso_time(self._clock.now_us())
            ok, text = await self._audit()
            self._write({"began": began, "ended": iso_time(self._clock.now_us()), "ok": ok, "text": _cut(text)})
        finally:
            os.close(lock)

    async def _locked(self) -> int | None:
        """The exclusive lock; None if another audit holds the lock, after waiting LOOK_S_MAX for shared locks."""
        deadline_s = time.monotonic() + LOOK_S_MAX
        while (lock := try_lock(self._lock)) is None and time.monotonic() <= deadline_s:
            await asyncio.sleep(_TRY_S)
        return lock

    def _write(self, found: dict[str, Any]) -> None:
        try:
            _RESULT.write(self._last, found)
            self._unwritten = None
        except (OSError, StatesideError) as error:
            log.error("What the audit said cannot be written to %s: %s", self._last, error)
            self._unwritten = found

    async def _audit(self) -> tuple[bool | None, str]:
        """The command's verdict and output; None as verdict if the audit did not finish."""
        command = [sys.executable, "-m", "stateside", "audit", str(self._layout.root)]
        try:
            code, output, errors = await processes.run(command, AUDIT_S_MAX)
        except TimeoutError:
            return None, f"The audit took more than {AUDIT_S_MAX} s, and was ended"
        except OSError as error:
            log.error("The audit cannot be run: %s", error)
            return None, f"The audit cannot be run: {error.strerror or error}"
        if code in (_FOUND_NOTHING, _FOUND_SOMETHING) and output.strip():
            return code == _FOUND_NOTHING, output.strip()
        return None, errors.strip() or f"The audit ended with {code}"

    def _is_running(self) -> bool:
        if not self._lock.exists():
            return False
        lock = try_lock(self._lock, shared=True)
        if lock is None:
            return True
        os.close(lock)
        return False

    def _read(self) -> dict[str, Any] | None:
        """The last result: from the file, unless a newer one could not be written."""
        try:
            written = _RESULT.read_if_valid(self._last)
        except OSError:
            written = None
        known = [found for found in (written, self._unwritten) if found is not None]
        return max(known, key=lambda found: str(found.get("ended")), default=None)


def _cut(text: str) -> str:
    more = len(text) - TEXT_CHARS_MAX
    ending = f"\n… and {more:,} characters more, which `stateside audit` prints"
    return text if more <= 0 else text[:TEXT_CHARS_MAX] + ending
