"""Interrupts: how Ctrl-C and SIGTERM end a program that has things to put away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

HEARD = "Stopping, a moment …\n"
_STDERR = 2


class Interrupts:
    """Inside it, Ctrl-C and SIGTERM are noted, and become a KeyboardInterrupt where the program asks for them.

    By itself Python raises it in the middle of anything, such as a library's taking of a lock that is then never given
    back: stopping hung on that. Here, what was begun is finished, and what is put away in the end is put away whole,
    however often somebody presses Ctrl-C.
    """

    def __init__(self) -> None:
        self._came = False
        self._at_once = False

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """KeyboardInterrupt if a signal came."""
        if self._came:
            raise KeyboardInterrupt

    def pause(self, seconds: float) -> None:
        """Let some time pass, then check."""
        time.sleep(seconds)
        self.check()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """In here a signal interrupts in the middle: for long work that shares nothing with what comes after."""
        self.check()
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._came:
            self._came = True
            with suppress(OSError):  # by the system call alone: the console, too, has a lock
                os.write(_STDERR, HEARD.encode())
        if self._at_once:
            self._at_once = False
            raise KeyboardInterrupt
