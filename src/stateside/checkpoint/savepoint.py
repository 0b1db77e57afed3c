"""Savepoints: a view's checkpoint as it was after one batch, from which the job can be begun again later.

    views/VIEW/savepoints/NAME/checkpoint/       the files that a query needs to go on after that batch
    views/VIEW/savepoints/NAME/savepoint.json    {"batch": 128, "position": "0:40960", "watermark_us": 1768…,
                                                  "taken_us": 1768…, "bytes": 1048576, "fingerprint": "…"}

Taking one is safe while the job runs: nothing waits for it, and nothing of the checkpoint is written. Spark never
changes a file, it only adds some and deletes old ones; so links are enough, which take no room until Spark has deleted
its own. Where there can be none, files are copied.

1. The newest finished batch is chosen, and its files are brought into a folder whose name begins with a dot. If Spark
   deletes one meanwhile, a newer batch is chosen.
2. The batch must still be the same one. All is made durable, which Spark itself does not see to. Then the folder is
   given its name, in one step.

A crash before step 2 leaves a folder that nobody sees, and that the next one removes. A batch has one savepoint.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from stateside.checkpoint.log import Checkpoint
from stateside.checkpoint.needed import needed_files
from stateside.errors import CheckpointGap, CheckpointInvalid, OperatingError, PositionInvalid
from stateside.layout import Layout, ViewLayout
from stateside.positions import Position
from stateside.storage import Storage, lock_within, make_durable, sync_directory, write_atomically

CHOICES_MAX: Final = 5  # Spark deletes files while they are being brought: so often a newer batch is chosen
WAIT_S_MAX: Final = 30.0
RESTORING: Final = "checkpoint.restoring-"  # a copy that is to be a view's checkpoint (`ops.restoring`)
_TAKING: Final = ".taking-"
_OPTIONAL: Final = ".crc"  # not every file has checksums


@dataclass(frozen=True, slots=True)
class Savepoint:
    """One of a view's savepoints. Times are microseconds since 1970."""

    folder: Path
    batch: int
    position: Position
    watermark_us: int
    taken_us: int
    bytes: int
    fingerprint: str

    @property
    def name(self) -> str:
        """What it is called, as long as it is there."""
        return self.folder.name

    @property
    def checkpoint(self) -> Path:
        """The files."""
        return self.folder / "checkpoint"

    def as_dict(self) -> dict[str, Any]:
        """As it stands in its file, and in answers."""
        told = {name: value for name, value in asdict(self).items() if name != "folder"}
        return {"name": self.name, **told, "position": str(self.position)}

    @classmethod
    def read(cls, folder: Path) -> Savepoint:
        """The one in this folder; CheckpointInvalid if it cannot be read."""
        path = folder / "savepoint.json"
        try:
            document = json.loads(path.read_bytes())
            numbers = {name: int(document[name]) for name in ("batch", "watermark_us", "taken_us", "bytes")}
            position, fingerprint = Position.parse(document["position"]), str(document["fingerprint"])
            return cls(folder=folder, position=position, fingerprint=fingerprint, **numbers)
        except (OSError, ValueError, LookupError, TypeError, PositionInvalid) as error:
            raise CheckpointInvalid(
                f"This savepoint cannot be read: {error!r}", where=str(path), next_step="Delete its folder"
            ) from error


def savepoints(view: ViewLayout, on_damaged: Callable[[CheckpointInvalid], None] | None = None) -> list[Savepoint]:
    """Those that a view has, oldest first. One that cannot be read is told to `on_damaged`, or raised without that.

    Whoever deletes what no savepoint needs must not go on without one of them.
    """
    found = []
    for folder in names(view):
        try:
            found.append(Savepoint.read(view.savepoints / folder))
        except CheckpointInvalid as error:
            if not (view.savepoints / folder).exists():
                continue  # it was deleted meanwhile
            if on_damaged is None:
                raise
            on_damaged(error)
    return sorted(found, key=lambda one: (one.taken_us, one.batch))


def names(view: ViewLayout) -> list[str]:
    """What a view's savepoints are called, whether they can be read or not."""
    return sorted(path.name for path in view.savepoints.glob("*") if not path.name.startswith("."))


def take(view: ViewLayout, now_us: int) -> Savepoint:
    """Take one of the newest finished batch, or give the one that there is of it already.

    CheckpointInvalid if no batch is finished yet; CheckpointGap if Spark deletes files faster than they are brought.
    """
    view.savepoints.mkdir(parents=True, exist_ok=True)
    with _alone(view.savepoints):
        for left in view.savepoints.glob(f"{_TAKING}*"):
            shutil.rmtree(left, ignore_errors=True)
        for _ in range(CHOICES_MAX):
            with suppress(FileNotFoundError, CheckpointGap):
                return _take(view, Checkpoint(Storage.at(view.checkpoint)), now_us)
    raise CheckpointGap(
        f"Spark deletes the files of {view.name!r} faster than they can be brought",
        where=str(view.checkpoint),
        next_step="Let Spark keep more batches (minBatchesToRetain), or stop the job first",
    )


def check_whole(layout: Layout) -> None:
    """CheckpointInvalid if a view's restore was interrupted, and has left no checkpoint: a job would begin anew.

    For whoever is about to run the jobs of the folder, and keeps a restore from being under way meanwhile.
    """
    for copy in sorted((layout.root / "views").glob(f"*/{RESTORING}*")):
        view = ViewLayout(copy.parent)
        if not view.checkpoint.exists():
            raise CheckpointInvalid(
                f"A restore of the view {view.name!r} was interrupted, and it has no checkpoint",
                where=str(copy),
                next_step="Repeat `stateside savepoint restore`; or delete this folder, if the view is to begin anew",
            )


def _take(view: ViewLayout, checkpoint: Checkpoint, now_us: int) -> Savepoint:
    commits = checkpoint.commits()
    if not commits:
        raise CheckpointInvalid(f"The view {view.name!r} has no finished batch yet", next_step="Wait for its first one")
    batch = commits[-1]
    fingerprint = checkpoint.fingerprint(batch)
    if fingerprint is None:
        raise FileNotFoundError(checkpoint.storage.path(f"commits/{batch}"))
    final = view.savepoints / f"batch-{batch}-{fingerprint[:8]}"
    if final.exists():
        return Savepoint.read(final)
    taking = view.savepoints / f"{_TAKING}{secrets.token_hex(8)}"
    try:
        size_bytes = _bring(checkpoint, batch, taking / "checkpoint")
        if checkpoint.fingerprint(batch) != fingerprint:
            raise FileNotFoundError(checkpoint.storage.path(f"commits/{batch}"))
        plan = checkpoint.plan(batch)
        made = Savepoint(final, batch, plan.position, plan.watermark_us, now_us, size_bytes, fingerprint)
        write_atomically(taking / "savepoint.json", json.dumps(made.as_dict()).encode())
        make_durable(taking)
        taking.rename(final)
    finally:
        shutil.rmtree(taking, ignore_errors=True)
    sync_directory(view.savepoints)
    return made


def _bring(checkpoint: Checkpoint, batch: int, target: Path) -> int:
    """Bring all files; how many bytes they have."""
    size_bytes = 0
    for name in dict.fromkeys(needed_files(checkpoint, batch)):
        try:
            checkpoint.storage.bring(name, target / name)
        except FileNotFoundError:
            if not name.endswith(_OPTIONAL):
                raise
            continue
        size_bytes += (target / name).stat().st_size
    return size_bytes


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While nobody else takes one here."""
    handle = lock_within(folder / ".lock", WAIT_S_MAX)
    if handle is None:
        raise OperatingError("Another savepoint of this view is being taken", next_step="Look for it in a while")
    try:
        yield
    finally:
        os.close(handle)
