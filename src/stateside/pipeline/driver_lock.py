"""The driver's lock: of all Spark drivers, one may run on a folder.

Spark does not stop a second driver from starting on the same checkpoint, and sinks are not protected from it at all. So
the driver holds a lock on `driver.lock`, and the JVM inherits it: when the Python process is killed, the lock stays
with the JVM until that has died too. Whoever comes next waits for that, and never runs beside it.

Leaders share the lock: a new one may begin although an old one is paused and holds it, for the old one's gate is shut
(`leadership.election`). It keeps out whoever runs without a lease.

Who has the lock, and leads if there is a lease, knows that no savepoint is being restored. So it is also here that one
whose restore was interrupted is noticed, before Spark begins the job anew.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from stateside.core.errors import PipelineRunning
from stateside.core.layout import Layout
from stateside.core.storage import try_lock
from stateside.views.savepoint import check_whole

WAIT_S_MAX = 30.0
_PAUSE_S = 0.1

log = logging.getLogger(__name__)


def acquire(path: Path, wait_s: float = WAIT_S_MAX, *, shared: bool = False) -> int:
    """The lock's file descriptor, to be handed on to the JVM; PipelineRunning if it is not free in time.

    CheckpointInvalid if the restore of a savepoint was interrupted here.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_s
    told = False
    while (handle := try_lock(path, shared=shared)) is None:
        if time.monotonic() >= deadline:
            raise PipelineRunning(
                f"Another Spark driver (process {holders(path)}) still runs on this folder after {wait_s:.0f} s",
                where=str(path.parent),
                next_step="Stop it, or give this one another --dir",
            )
        if not told:
            log.warning("waiting for the Spark driver of this folder to end (process %s)", holders(path))
            told = True
        time.sleep(_PAUSE_S)
    try:
        check_whole(Layout(path.parent))
    except BaseException:
        os.close(handle)
        raise
    if holders(path).split()[0] != str(os.getpid()):  # if it is, its JVM stands there too
        note_holder(handle, os.getpid())
    return handle


def note_holder(handle: int, *pids: int) -> None:
    """Write into the lock's file which processes hold it, for operators."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, " ".join(map(str, pids)).encode(), 0)


def holders(path: Path) -> str:
    """The processes that hold the lock, or held it last: the driver's Python process and its JVM."""
    return path.read_text() or "unknown"
