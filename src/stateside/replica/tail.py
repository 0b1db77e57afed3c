"""The tail: follows one view's checkpoint and advances its replica, one transaction per committed batch.

After any error readers keep the last batch, get the reason why there is no newer one, and the tail tries again.
`Freshness` finds the heartbeat up to which a replica's batch was up to date, `explained` turns errors of the file
system into errors with a next step, `Waking` paces the tail:

Where the checkpoint's file system notifies of changes, Spark's rename of `commits/N` wakes the tail within
milliseconds. Other file systems (network, object stores) do not notify, and do not say so. So the tail polls as well:
the pauses grow while nothing comes, up to 0.1 s; up to 1 s only if the last batch came with a notification. So a batch
without notification is found after 1 s at most, and the next ones sooner.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import pyarrow.fs as pafs
from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

from stateside.core.errors import CheckpointGap, CheckpointInvalid, ReplicaInvalid, StatesideError
from stateside.core.layout import ViewLayout
from stateside.core.storage import Storage
from stateside.replica import lists
from stateside.replica.batch_marker import AppliedBatch
from stateside.replica.bootstrap import Bootstrap, LoadStopped, Watch, nobody
from stateside.replica.checksums import ReplicaDamaged
from stateside.replica.environment import full_disk, loading_folder
from stateside.replica.history import Keep
from stateside.replica.rollup_tables import Rollups, rollups_of
from stateside.replica.shard import Share
from stateside.replica.store import ReplicaWriter
from stateside.replica.translation import Translator, translator_of
from stateside.spark_state.batch_log import Commit, Plan
from stateside.spark_state.provider import read_batch_changes
from stateside.views.catalogue import Catalogue
from stateside.views.functions import KnownFunctions
from stateside.views.heartbeat import Heartbeat
from stateside.views.state_catalogue import checkpoint_of

HEARTBEATS_MAX = 10_000  # waiting for a batch that covers them: about half an hour


class Freshness:
    """The heartbeats of one view; the newest ones wait for a batch that covers them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._heartbeats: deque[Heartbeat] = deque(maxlen=HEARTBEATS_MAX)

    def hear(self) -> bool:
        """Read the newest heartbeat; returns whether it is new."""
        heartbeat = Heartbeat.load(self._path)
        if heartbeat is None or heartbeat.source_end is None:
            return False
        last = self._heartbeats[-1] if self._heartbeats else None
        if last == heartbeat:
            return False
        if last is not None and not follows(heartbeat, last):
            self._heartbeats.clear()  # of a replaced job: no batch may ever cover them
        self._heartbeats.append(heartbeat)
        return True

    def fresh_us(self, applied: AppliedBatch | None) -> int | None:
        """Until when the batch was up to date, by the newest heartbeat whose source end the batch covers."""
        found = None
        while applied and self._heartbeats and covered(applied, self._heartbeats[0]):
            found = self._heartbeats.popleft()
        if found is None:
            return None
        self._heartbeats.appendleft(found)
        return found.time_us if found.end_us is None else found.end_us

    def forget(self) -> None:
        """Start again: another query's heartbeats do not apply to this one."""
        self._heartbeats.clear()


def covered(applied: AppliedBatch, heartbeat: Heartbeat) -> bool:
    """Whether the batch has all events that the source had at the heartbeat.

    The position alone is not enough: for a source with opaque offsets every batch has the same one.
    """
    if heartbeat.source_end is None or (heartbeat.batch is not None and applied.batch < heartbeat.batch):
        return False
    return applied.position.covers(heartbeat.source_end)


def follows(heartbeat: Heartbeat, last: Heartbeat) -> bool:
    """Whether the job continued from the last heartbeat to this one."""
    assert heartbeat.source_end is not None and last.source_end is not None, "others are not kept"
    went_on = last.batch is None or (heartbeat.batch is not None and heartbeat.batch >= last.batch)
    return went_on and heartbeat.source_end.covers(last.source_end)


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def explained(error: Exception, checkpoint: str, replica: Path) -> Exception:
    """The error with a place and a next step; unchanged if there is nothing to add."""
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


PAUSE_S_MIN = 0.01
PAUSE_S_MAX = 0.1
TOLD_PAUSE_S_MAX = 1.0
STEP_MS = 5  # how often a waiting thread checks for notifications: a third of a percent of a core
log = logging.getLogger(__name__)
Sign = tuple[tuple[str, int, int], ...]


class Waking:
    """The pauses of one tail. Watches the existing ones of `folders`; none on a remote file system."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._watched: Sign = ()
        self._notify: RustNotify | None = None
        self._told = self._trusted = False
        self._pause_s = PAUSE_S_MIN

    def wait(self, stop: threading.Event, *, found: bool) -> None:
        """Wait for a notification, the end of the pause, or `stop`.

        `found`: whether there was a batch since the last call.
        """
        if found:
            self._trusted = self._told
        pause_s_max = TOLD_PAUSE_S_MAX if self._trusted else PAUSE_S_MAX
        self._pause_s = PAUSE_S_MIN if found else min(2 * self._pause_s, pause_s_max)
        self._watch()
        self._told = self._wait(stop)

    def close(self) -> None:
        if self._notify is not None:
            self._notify.close()
        self._notify, self._watched = None, ()

    def _wait(self, stop: threading.Event) -> bool:
        """Whether a notification came during the pause."""
        if self._notify is None:
            stop.wait(self._pause_s)
            return False
        changes = self._notify.watch(STEP_MS, STEP_MS, max(STEP_MS, int(1_000 * self._pause_s)), stop)
        if not isinstance(changes, set):
            return False
        if {path for _, path in changes} & {path for path, _, _ in self._watched}:
            self._watched = ()  # a folder was created again, perhaps with the old inode number: renew the watch
        return True

    def _watch(self) -> None:
        """Watch the present folders: Spark creates `commits` late, and a checkpoint may be replaced."""
        found = _sign(self._folders)
        if found == self._watched:
            return
        self.close()
        try:
            if found:
                self._notify = RustNotify([path for path, _, _ in found], False, False, 0, False, True)
        except (OSError, WatchfilesRustInternalError) as error:
            # The folder is gone again, or this machine has too many watches.
            log.info("changes are not told, they are looked for: %s", error)
        self._watched = found


def _sign(folders: Sequence[Path]) -> Sign:
    found = []
    for folder in folders:
        try:
            stat = os.stat(folder)  # noqa: PTH116 - asked for with every pause
        except OSError:
            continue
        found.append((str(folder), stat.st_dev, stat.st_ino))
    return tuple(found)


ERROR_PAUSE_S = 1.0
GAP_CHECK_S = 5.0  # how often a tail that waits for a batch checks for later ones


class _Replaced(CheckpointGap):
    """The replica's batch is not from this checkpoint, whose state could not be loaded yet."""


class _Unaccounted(CheckpointGap):
    """The replica does not record its number of partitions, and its state could not be loaded yet."""


class _Deleted(ReplicaInvalid):
    """The replica's folder was deleted, and the state could not be loaded into a new one yet."""


class _Invalid(ReplicaInvalid):
    """The replica was damaged, or of an older Stateside, and the state could not be loaded yet."""


class Tail:
    """Advances the replica of one view. `step` does all that is possible now; `run` repeats it until stopped.

    `watch` receives the progress of a bootstrap. With a shard (`share`), the replica holds only its keys. `keep`: how
    long older batches stay readable.
    """

    def __init__(
        self, layout: ViewLayout, *, share: Share | None = None, keep: Keep | None = None, watch: Watch = nobody
    ) -> None:
        self._layout, self._share, self._watch = layout, share, watch
        self._read_catalogue()
        self._catalogue_file: tuple[int, int] | None = None  # the one whose rollups are maintained
        self._writer = ReplicaWriter(layout.replica, share=share, keep=keep)
        self._freshness = Freshness(layout.heartbeat)
        self._stop, self._suspected = threading.Event(), threading.Event()
        self._trouble = self._writer.trouble()  # of the tail before this one, until the replica advances
        self._logged: str | None = None
        self._gap_checked_s = 0.0

    def run(self, stop: threading.Event) -> None:
        """Follow the checkpoint until `stop` is set. After an error readers keep the last batch; then retry."""
        self._stop = stop
        waking = Waking(self._folders())
        while not stop.is_set():
            try:
                found = self.step()
                self._tell(None)
            except LoadStopped:
                break
            except Exception as error:  # of any kind: the next try may succeed
                self._tell(explained(error, self._checkpoint.storage.root, self._layout.replica))
                stop.wait(ERROR_PAUSE_S)
                continue
            waking.wait(stop, found=found)
        waking.close()
        self._writer.close()

    def step(self) -> bool:
        """Apply all committed batches, and the newest heartbeat; returns whether there was a batch.

        If batches are gone before they were read, the checkpoint is another one, the replica's folder was deleted, or
        its files are damaged, the replica is bootstrapped; CheckpointGap or ReplicaInvalid if impossible.
        """
        try:
            return self._follow()
        except (ReplicaDamaged, _Invalid) as invalid:
            if isinstance(invalid, ReplicaDamaged):
                aside = self._writer.set_aside(invalid.what)
                log.error("view %s: %s. It is moved to %s, rebuilding", self._layout.name, invalid.what, aside)
            self._load(invalid, "The replica was damaged")
        except _Replaced as replaced:
            log.warning("view %s: the checkpoint was replaced or rolled back, rebuilding", self._layout.name)
            self._freshness.forget()
            self._read_catalogue()
            self._load(replaced, "The checkpoint was replaced or rolled back")
        except _Unaccounted as unaccounted:
            log.warning("view %s: the replica is of an older Stateside, rebuilding", self._layout.name)
            self._load(unaccounted, "It may lack rows of a state that Spark repartitioned")
        except CheckpointGap as gap:
            self._load(gap, "Batches after the replica's are gone")
        except _Deleted as deleted:
            log.warning("view %s: the replica's folder was deleted, rebuilding", self._layout.name)
            self._writer.take_place()
            self._load(deleted, "The replica's folder was deleted")
        self._follow()
        return True

    def suspect(self) -> None:
        """Have the next step verify the whole replica first: a signal ended one of its readers."""
        self._suspected.set()

    def close(self) -> None:
        self._writer.close()

    def _read_catalogue(self) -> None:
        """Read the catalogue: another query on the checkpoint may have another one."""
        self._catalogue = Catalogue.load(self._layout.catalogue)
        self._checkpoint = checkpoint_of(self._catalogue, Storage.at(self._layout.checkpoint_location))
        self._translator: Translator | None = None

    def _folders(self) -> list[Path]:
        """The folders to watch: those of Spark's commits, and of heartbeats."""
        if not isinstance(self._checkpoint.storage.filesystem, pafs.LocalFileSystem):
            return []
        root = Path(self._checkpoint.storage.root)
        return [root, root / "commits", self._layout.heartbeat.parent]

    def _load(self, gap: StatesideError, why: str) -> None:
        """Bootstrap beside the old replica, which readers keep until then; raises `gap` if no state is available."""
        trouble = self._trouble
        with self._loading() as load:
            batch = load.secure()
            if batch is None:
                raise gap
            self._note(f"{why}, and batch {batch} is being loaded")
            self._catalogue_file = None  # the writer needs the rollups again, however the load ends
            try:
                load.run(self._made_translator(), self._declared_rollups(), self._stop, self._watch)
            except BaseException:
                self._note(trouble)
                raise
        self._trouble = None  # as in the new replica

    def _follow(self) -> bool:
        self._check_in_place()
        self._check_valid()
        self._check_belongs()
        if self._writer.batch() is not None:
            self._keep_rollups()
        if self._freshness.hear():
            self._freshen()
        moved = False
        while not (moved and self._stop.is_set()) and self._advance():
            moved = True
        if moved:
            self._freshen()
        else:
            self._writer.scrub()
        return moved

    def _tell(self, error: Exception | None) -> None:
        """Report once, to the log and to readers, that the replica does not advance, or does again."""
        trouble = None if error is None else str(error)
        if error is not None and trouble != self._logged:
            unexpected = None if isinstance(error, StatesideError) else error
            log.error("view %s: %s", self._layout.name, error, exc_info=unexpected)
        self._logged = trouble
        if trouble == self._trouble:
            return
        try:
            self._note(trouble)
        except StatesideError as unwritten:  # on a full disk, for example: retried later
            log.warning("view %s: readers cannot be told of it: %s", self._layout.name, unwritten)

    def _note(self, trouble: str | None) -> None:
        self._writer.note_trouble(trouble)
        self._trouble = trouble

    def _check_in_place(self) -> None:
        """_Deleted if new readers would not find the replica."""
        if not self._writer.in_place():
            raise _Deleted(
                "The replica's folder was deleted, and there is no state to load yet",
                where=str(self._layout.replica),
                next_step="Let the view run on: it is then loaded from the checkpoint",
            )

    def _check_valid(self) -> None:
        """ReplicaDamaged or _Invalid if the replica must be bootstrapped before any read."""
        self._writer.check(whole=self._suspected.is_set())
        self._suspected.clear()
        why = self._writer.invalid()
        if why is not None:
            raise _Invalid(
                f"{why}, and there is no state to load yet",
                where=str(self._layout.replica),
                next_step="Let the view run on: it is then loaded from the checkpoint",
            )

    def _check_belongs(self) -> None:
        """_Replaced if the checkpoint is another one, or was rolled back before the replica's batch.

        _Unaccounted for a replica of an older version, which may lack partitions.
        """
        applied = self._writer.batch()
        if applied is None:
            return
        if self._checkpoint.fingerprint(applied.batch) == applied.fingerprint:
            if not applied.partitions:
                raise _Unaccounted(
                    "The replica does not say of how many partitions its rows are, and there is no state to load yet",
                    where=str(self._layout.replica),
                    next_step="Let the view run on: the replica is then loaded from the checkpoint",
                )
            return
        query, commits = self._checkpoint.query_id(), self._checkpoint.commits()
        if query is None:
            raise CheckpointInvalid(
                "The checkpoint is gone",
                where=self._checkpoint.storage.root,
                next_step="Bring it back, or run the view",
            )
        if query == applied.query and commits and commits[0] > applied.batch:
            raise self._gap(applied.batch + 1, commits[0])
        raise _Replaced(
            f"The checkpoint was replaced, or rolled back before batch {applied.batch}, and has no state to load yet",
            where=self._checkpoint.storage.root,
            next_step=f"Let the view run on: readers have batch {applied.batch} of before until then",
        )

    def _advance(self) -> bool:
        applied = self._writer.batch()
        batch = applied.batch + 1 if applied else 0
        if not self._checkpoint.committed(batch):
            if time.monotonic() - self._gap_checked_s >= GAP_CHECK_S:
                self._check_no_gap(batch)  # raises before the time is recorded: the next call checks again
                self._gap_checked_s = time.monotonic()
            return False
        self._gap_checked_s = 0.0
        self._apply(batch)
        return True

    def _keep_rollups(self) -> None:
        """Maintain the rollups of the present catalogue: `run` may have been restarted with others."""
        found = self._layout.catalogue.stat()
        if (found.st_ino, found.st_mtime_ns) == self._catalogue_file:
            return
        self._writer.keep_rollups(self._declared_rollups())
        self._catalogue_file = (found.st_ino, found.st_mtime_ns)

    def _declared_rollups(self) -> Rollups:
        self._catalogue = Catalogue.load(self._layout.catalogue)
        functions = KnownFunctions(self._layout.name, self._layout.functions)
        return rollups_of(self._catalogue, self._checkpoint.storage, functions)

    def _apply(self, batch: int) -> None:
        self._keep_rollups()
        fingerprint = self._checkpoint.fingerprint(batch)
        plan, commit = self._checkpoint.plan(batch), self._checkpoint.commit(batch)
        query = self._checkpoint.query_id()
        partitions = self._checkpoint.partitions(self._catalogue.operator, plan, commit)
        changes = self._changes(plan, commit, partitions)
        if query is None or fingerprint is None or fingerprint != self._checkpoint.fingerprint(batch):
            raise CheckpointInvalid(
                "The checkpoint was replaced while it was read", where=self._checkpoint.storage.root
            )
        state = AppliedBatch(
            query, batch, plan.position, plan.watermark_us, commit.committed_us, fingerprint, partitions
        )
        self._writer.apply(state, changes)

    def _changes(self, plan: Plan, commit: Commit, partitions: int) -> list[lists.Change]:
        applied = self._writer.batch()
        if applied is not None and applied.partitions != partitions:
            return [*self._repartitioned(commit.batch, applied.partitions, partitions)]
        operator, prefixed, translator = self._catalogue.operator, self._prefixed(), self._made_translator()
        scratch = loading_folder(self._writer.directory) / "version"
        changes: list[lists.Change] = []
        for partition in range(partitions):
            changelog = read_batch_changes(
                self._checkpoint, plan, commit, operator, partition, prefixed=prefixed, scratch=scratch
            )
            changes += translator.changes(commit, partition, changelog)
        return changes

    def _repartitioned(self, batch: int, before: int, after: int) -> list[lists.Plain]:
        """The changes of a batch that wrote the whole state into other partitions; as a rule, none."""
        log.info(
            "view %s: batch %d has its state in %d partitions, not in %d: all of it is compared",
            self._layout.name, batch, after, before,
        )  # fmt: skip
        with self._loading() as load:
            if load.secure(batch) is None:
                raise CheckpointGap(
                    f"The state of batch {batch}, in {after} partitions, cannot be had in all of them",
                    where=self._checkpoint.storage.path(f"state/{self._catalogue.operator}"),
                    next_step="Restore the missing files, or let the view run on: a newer batch is then loaded",
                )
            return load.differences(self._made_translator(), self._stop, self._watch)

    def _loading(self) -> Bootstrap:
        return Bootstrap(
            self._checkpoint,
            self._catalogue.operator,
            self._writer,
            prefixed=self._prefixed(),
            view=self._layout.name,
        )

    def _made_translator(self) -> Translator:
        if self._translator is None:
            self._translator = translator_of(self._catalogue, self._checkpoint, self._share)
        return self._translator

    def _prefixed(self) -> bool:
        """Whether the state, if in RocksDB, has its keys in two parts."""
        return self._catalogue.kind == "session"

    def _check_no_gap(self, batch: int) -> None:
        """CheckpointGap if the next batch is missing although later ones exist."""
        later = [other for other in self._checkpoint.commits() if other > batch]
        if later:
            raise self._gap(batch, later[0])

    def _gap(self, batch: int, oldest: int) -> CheckpointGap:
        return CheckpointGap(
            f"Batch {batch} is gone, the oldest one left is {oldest}, and no snapshot of the state can replace it",
            where=self._checkpoint.storage.path(f"commits/{batch}"),
            next_step="Let the view run on: Spark writes a snapshot every few batches, and the replica then loads it",
        )

    def _freshen(self) -> None:
        fresh_us = self._freshness.fresh_us(self._writer.batch())
        if fresh_us is not None:
            self._writer.freshen(fresh_us)
