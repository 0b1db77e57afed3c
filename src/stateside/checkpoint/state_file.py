"""A file of a state store, compared with the checksums beside it (`checksum`) and taken out of its envelope.

An lz4 envelope has checksums of its own as well. A file without any (snappy or zstd, format v1, not on a local disk) is
believed as the file system gives it: a byte that changed in it may come out as a wrong row.
"""

from __future__ import annotations

from collections.abc import Iterator

from stateside.checkpoint.checksum import read_checked
from stateside.checkpoint.compression import expand
from stateside.storage import Storage


def read_state_file(storage: Storage, name: str) -> Iterator[bytes]:
    """The bytes inside a state file, piece by piece.

    FileNotFoundError where there is none; CheckpointInvalid, at once or at a later piece, if it is damaged.
    """
    return expand(read_checked(storage, name), storage.path(name))
