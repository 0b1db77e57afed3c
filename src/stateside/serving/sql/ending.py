"""Why a statement must end before it is done: its time is up, who asked has left, or reading its rows failed.

Whoever finds out, in whatever thread, says so here; what works on the statement looks here between two steps. DuckDB,
which may be in the middle of a long one, is interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from stateside.errors import StatesideError


class Ending:
    """One statement's end. Only the first reason counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._why: Exception | None = None
        self._interrupt: Callable[[], None] | None = None

    @property
    def why(self) -> Exception | None:
        """The reason, if the statement is to end."""
        return self._why

    def interrupts(self, interrupt: Callable[[], None] | None) -> None:
        """From now on this is what stops DuckDB; None once there is nothing to stop."""
        with self._lock:
            self._interrupt = interrupt

    def end(self, why: Exception) -> None:
        """End the statement. May be said again: DuckDB does not hear it between two of its own calls."""
        with self._lock:
            self._why = self._why or why
            if self._interrupt is not None:
                self._interrupt()

    def check(self) -> None:
        """Raise the reason, if there is one."""
        if self._why is not None:
            raise _again(self._why)


def _again(why: Exception) -> Exception:
    """The error anew: it may be raised in several threads."""
    return type(why)(why.what, where=why.where, next_step=why.next_step) if isinstance(why, StatesideError) else why
