"""The driver's lock: at most one Spark driver runs on a folder.

Spark does not stop a second driver from starting on the same checkpoint, and sinks have no protection against it. So
the driver holds a lock on `driver.lock`, and the JVM inherits the lock: after a kill of the Python process the JVM
keeps it until the JVM has ended too. The next driver waits for that end, and never runs beside the old one.

Leaders share the lock: a new leader may start although a paused one still holds the lock, because the old leader's gate
is shut (`leadership.election`). A shared lock keeps out drivers without a lease.

A process with the lock, and with the lease if there is one, knows that no savepoint restore is running. So `acquire`
also detects an interrupted restore, before Spark starts the job.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from stateside.core.errors import PipelineRunning
from stateside.core.layout import Layout
from stateside.core.storage import lock_within, try_lock
from stateside.views.savepoint import check_whole

WAIT_S_MAX = 30.0

log = logging.getLogger(__name__)


def acquire(path: Path, wait_s: float = WAIT_S_MAX, *, shared: bool = False) -> int:
    """The lock's file descriptor, for the JVM to inherit; PipelineRunning if the lock is not free in time.

    CheckpointInvalid if a savepoint restore was interrupted in this folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = try_lock(path, shared=shared)
    if handle is None:
        if wait_s:
            log.warning("waiting for the Spark driver of this folder to end (process %s)", holders(path))
        handle = lock_within(path, wait_s, shared=shared)
    if handle is None:
        raise PipelineRunning(
            f"Another Spark driver (process {holders(path)}) still runs on this folder after {wait_s:.0f} s",
            where=str(path.parent),
            next_step="Stop it, or give this one another --dir",
        )
    try:
        check_whole(Layout(path.parent))
    except BaseException:
        os.close(handle)
        raise
    if holders(path).split()[0] != str(os.getpid()):  # otherwise the file already lists this process and its JVM
        note_holder(handle, os.getpid())
    return handle


def note_holder(handle: int, *pids: int) -> None:
    """Write the process ids of the holders into the lock file, for operators."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, " ".join(map(str, pids)).encode(), 0)


def holders(path: Path) -> str:
    """The process ids of the present or last holders: the driver's Python process and its JVM."""
    return path.read_text() or "unknown"
