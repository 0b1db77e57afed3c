"""Interrupts: how Ctrl-C and SIGTERM end a program that has things to put away."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class Interrupts:
    """Inside it, Ctrl-C and SIGTERM are a KeyboardInterrupt: one, however often they come, and none after `hold`.

    So what is put away at the end is put away whole, by an impatient user too.
    """

    def __init__(self) -> None:
        self._held = False

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """From here on they do nothing: the end has begun."""
        self._held = True

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self._held:
            self._held = True
            raise KeyboardInterrupt
