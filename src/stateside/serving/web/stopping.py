"""Stopping: a worker process is told to stop by a signal, and what goes on without end is to hear of it too."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def on_stop(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call this, on the loop, when the process is told to stop. For the main thread, once.

    Granian has given these signals to the loop, which hears of them from Python's own handler by a pipe and not by the
    function that is set here: so both are called, Granian's, which lets no new request in, and this one.
    """
    for number in _SIGNALS:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))
