"""Snapshots of entities' states in LMDB, so that a replay need not begin with the first event.

    blake2b of kind, 0 and entity, 16 bytes -> u32 CRC-32 of the rest, then JSON:
        {"kind", "entity", "fold": version of the fold, "journal": its id, "sequence", "last_id", "state"}

Snapshots are derived from the journal and never required: the folder may be deleted while no process has it open. A
failure is logged, and costs a longer replay. A snapshot is used only if whole, and of the same kind, entity, journal
and version of the fold; `commands.Replay` checks the snapshot against the log.
"""

from __future__ import annotations

import logging
import struct
import zlib
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import lmdb
import orjson

from stateside.core.errors import SettingInvalid
from stateside.core.lmdb import is_whole, open_environment

MAP_BYTES = (1 << 36, 1 << 32, 1 << 28)  # address space, not memory; the largest that the process may map
READERS_MAX = 512
PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME  # JSON's own types only

_CRC = struct.Struct("<I")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Whose:
    """The identity of a snapshot. A snapshot is used only if all fields are equal."""

    kind: str
    entity: str
    fold: int
    journal: str | None

    def key(self) -> bytes:
        """The LMDB key. There is one snapshot per entity, so a new fold's replaces the old one's."""
        return blake2b(f"{self.kind}\0{self.entity}".encode(), digest_size=16).digest()

    def fields(self) -> dict[str, Any]:
        return {"kind": self.kind, "entity": self.entity, "fold": self.fold, "journal": self.journal}


@dataclass(frozen=True, slots=True)
class EntitySnapshot:
    """A dumped state as of the event with this sequence and id."""

    sequence: int
    last_id: str
    state: Any


class Snapshots:
    """The snapshots in a folder. Processes may share a folder; within a process share one object (LMDB's rule)."""

    def __init__(self, folder: Path) -> None:
        """SettingInvalid if this process has the folder open already."""
        self._folder = folder
        self._environment = _opened(folder)
        self._page_bytes = self._environment.stat()["psize"] if self._environment else 0

    def load(self, whose: Whose) -> EntitySnapshot | None:
        """The newest snapshot; None if there is none usable."""
        if self._environment is None or not is_whole(self._folder, self._environment, self._page_bytes):
            return None
        try:
            with self._environment.begin() as transaction:
                found = transaction.get(whose.key())
        except lmdb.Error as error:
            log.warning("the snapshots in %s cannot be read, entities are replayed: %s", self._folder, error)
            return None
        return None if found is None else _parsed(whose, found)

    def save(self, whose: Whose, kept: EntitySnapshot) -> bool:
        """Replace the entity's snapshot; whether this succeeded. TypeError if the state is not JSON."""
        fields = whose.fields() | {"sequence": kept.sequence, "last_id": kept.last_id, "state": kept.state}
        content = orjson.dumps(fields, option=PLAIN)
        if self._environment is None or not is_whole(self._folder, self._environment, self._page_bytes):
            return False
        try:
            with self._environment.begin(write=True) as transaction:
                transaction.put(whose.key(), _CRC.pack(zlib.crc32(content)) + content)
            return True
        except lmdb.Error as error:
            log.warning("a snapshot of %r cannot be kept in %s: %s", whose.entity, self._folder, error)
            return False

    def close(self) -> None:
        if self._environment is not None:
            self._environment.close()
        self._environment = None

    def __enter__(self) -> Snapshots:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _parsed(whose: Whose, found: bytes) -> EntitySnapshot | None:
    """The snapshot, if whole and of the same identity."""
    content = found[_CRC.size :]
    if len(found) < _CRC.size or _CRC.unpack_from(found)[0] != zlib.crc32(content):
        log.warning("the snapshot of %r is damaged and not used", whose.entity)
        return None
    fields = orjson.loads(content)
    if any(fields[name] != value for name, value in whose.fields().items()):
        return None
    return EntitySnapshot(fields["sequence"], fields["last_id"], fields["state"])


def _opened(folder: Path) -> lmdb.Environment | None:
    """The folder's environment, recreated if damaged; None if the disk has no space for it."""
    for attempt in (1, 2):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return open_environment(folder, readers_max=READERS_MAX, map_bytes=MAP_BYTES)
        except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as error:
            log.warning("the snapshots in %s are damaged and begun again: %s", folder, error)
        except (lmdb.Error, OSError) as error:
            if "already open in this process" in str(error):
                raise _open_twice(folder) from error
            log.warning("there are no snapshots in %s, entities are replayed: %s", folder, error)
            return None
        if attempt == 1:
            (folder / "data.mdb").unlink(missing_ok=True)
    return None


def _open_twice(folder: Path) -> SettingInvalid:
    return SettingInvalid(
        "These snapshots are open in this process already",
        where=str(folder),
        next_step="Share the one `Snapshots` among all kinds: LMDB opens a file once in a process",
    )
