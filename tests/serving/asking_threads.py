"""Threads that ask all the time, for as long as a `with` lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Self


class AskingThreads:
    """One thread for each of these, which go on until `_stop` is set."""

    def __init__(self, asks: Iterable[Callable[[], None]]) -> None:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=ask) for ask in asks]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
