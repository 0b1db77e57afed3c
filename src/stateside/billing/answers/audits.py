"""Audits that are started over HTTP: one at a time, in a process of its own, as `stateside audit` runs it.

An audit changes nothing but the auditor's own ledger, so it is safe at any time. What the last one said stands in a
file, so that every worker of the server, and the next server, can tell it.

    audit/last.json     {"began": "2026-01-31T…Z", "ended": "…Z", "ok": true, "text": "events  1,234 = …"}
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, Final

from stateside import processes
from stateside.clock import Clock, SystemClock
from stateside.layout import Layout
from stateside.serving.stamp import iso_time
from stateside.storage import try_lock, write_atomically

AUDIT_S_MAX: Final = 3_600
TEXT_CHARS_MAX: Final = 20_000
_FOUND_NOTHING, _FOUND_SOMETHING = 0, 1  # the command's exit codes; with any other it did not come to an end


class Audits:
    """The audits of a folder: one for each worker process."""

    def __init__(self, layout: Layout, clock: Clock | None = None) -> None:
        self._layout, self._clock = layout, clock or SystemClock()
        self._last, self._lock = layout.audit / "last.json", layout.audit / ".asked.lock"
        self._running: set[asyncio.Task[None]] = set()

    def state(self) -> dict[str, Any]:
        """Whether one runs, which anybody may have started here, and what the last one said; None before the first."""
        return {"running": self._is_running(), "last": self._read()}

    def start(self) -> dict[str, Any]:
        """Start one, unless one runs."""
        self._layout.audit.mkdir(parents=True, exist_ok=True)
        lock = try_lock(self._lock)
        if lock is not None:
            task = asyncio.get_running_loop().create_task(self._run(lock))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return {"running": True, "last": self._read()}

    async def _run(self, lock: int) -> None:
        try:
            began = iso_time(self._clock.now_us())
            ok, text = await self._audit()
            found = {"began": began, "ended": iso_time(self._clock.now_us()), "ok": ok, "text": text[:TEXT_CHARS_MAX]}
            write_atomically(self._last, json.dumps(found).encode())
        finally:
            os.close(lock)

    async def _audit(self) -> tuple[bool | None, str]:
        """What the command says; None if it did not come to an end."""
        command = [sys.executable, "-m", "stateside", "audit", str(self._layout.root)]
        try:
            code, output, errors = await processes.run(command, AUDIT_S_MAX)
        except TimeoutError:
            return None, f"The audit took more than {AUDIT_S_MAX} s, and was ended"
        if code in (_FOUND_NOTHING, _FOUND_SOMETHING) and output.strip():
            return code == _FOUND_NOTHING, output.strip()
        return None, errors.strip() or f"The audit ended with {code}"

    def _is_running(self) -> bool:
        if not self._lock.exists():
            return False
        lock = try_lock(self._lock)
        if lock is None:
            return True
        os.close(lock)
        return False

    def _read(self) -> dict[str, Any] | None:
        try:
            return dict(json.loads(self._last.read_bytes()))
        except (OSError, ValueError):
            return None
