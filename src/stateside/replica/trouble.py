"""Trouble: what goes wrong below a replica, in words that say what to do about it."""

from __future__ import annotations

import errno
from pathlib import Path

from stateside.errors import CheckpointInvalid, StatesideError
from stateside.replica.environment import full_disk

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def explained(error: Exception, checkpoint: str, replica: Path) -> Exception:
    """The error as one that says where and what to do next; as it is if there is nothing more to say."""
    if isinstance(error, StatesideError) or not isinstance(error, OSError):
        return error
    where = str(error.filename or checkpoint)
    if error.errno in _FULL:
        return full_disk(replica, str(error.strerror))
    if isinstance(error, PermissionError):
        return CheckpointInvalid(
            f"The checkpoint may not be read: {error.strerror or error}",
            where=where,
            next_step="Let the user of this process read it: the replica stays at its last batch, and then goes on",
        )
    if isinstance(error, FileNotFoundError):
        return CheckpointInvalid(
            f"A file of the checkpoint is missing: {error.strerror or error}",
            where=where,
            next_step="Restore it, or let the view run on: the replica stays at its last batch, and tries again",
        )
    return CheckpointInvalid(
        f"The checkpoint cannot be read: {error}", where=where, next_step="See to its disk: the replica tries again"
    )
