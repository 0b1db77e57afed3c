"""The tail: follows one view's checkpoint and moves its replica on, one transaction a committed batch.

Whatever goes wrong, readers keep the last batch, are told why it is not a newer one, and the tail tries again.

Freshness: which heartbeat tells until when a replica's batch was up to date.

Trouble: what goes wrong below a replica, in words that say what to do about it.

Waking: how a tail learns that there may be something new, soon and without asking all the time.

Where the checkpoint's file system tells of changes, Spark's rename of `commits/N` wakes the tail within milliseconds.
Others (network file systems, object stores) tell nothing, and nobody says which do. So the tail polls as well: the
pauses grow while nothing comes, up to a tenth of a second; up to a second only as long as the last batch that was
found had been told of. One that comes untold is thus found after a second at most, and the next ones sooner.
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
from stateside.replica import generations, lists
from stateside.replica.batch_marker import AppliedBatch
from stateside.replica.bootstrap import Bootstrap, LoadStopped
from stateside.replica.checksums import ReplicaDamaged
from stateside.replica.history import Keep
from stateside.replica.keys import KeyCodec
from stateside.replica.lmdb import full_disk
from stateside.replica.load_progress import Watch, nobody
from stateside.replica.rollup_tables import Rollups, rollups_of
from stateside.replica.shard import Share, SharedTranslator
from stateside.replica.store import ReplicaWriter
from stateside.replica.translation import Translator, translator_of
from stateside.spark_state.batch_log import Commit, Plan
from stateside.spark_state.provider import read_batch_changes
from stateside.views.catalogue import Catalogue
from stateside.views.computed import KnownSteps
from stateside.views.heartbeat import Heartbeat
from stateside.views.other_state import checkpoint_of
from stateside.views.state_catalogue import completed

HEARTBEATS_MAX = 10_000  # so many heartbeats may wait for a batch that covers them: about half an hour


class Freshness:
    """The heartbeats of one view, of which the newest ones wait for a batch that covers them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._heartbeats: deque[Heartbeat] = deque(maxlen=HEARTBEATS_MAX)

    def hear(self) -> bool:
        """Look for the newest heartbeat; whether it was a new one."""
        heartbeat = Heartbeat.load(self._path)
        if heartbeat is None or heartbeat.source_end is None:
            return False
        last = self._heartbeats[-1] if self._heartbeats else None
        if last == heartbeat:
            return False
        if last is not None and not follows(heartbeat, last):
            self._heartbeats.clear()  # those of a job that was replaced: no batch may ever cover them
        self._heartbeats.append(heartbeat)
        return True

    def fresh_us(self, applied: AppliedBatch | None) -> int | None:
        """Until when the batch was up to date, as the newest heartbeat says whose source's end it covers."""
        found = None
        while applied and self._heartbeats and covered(applied, self._heartbeats[0]):
            found = self._heartbeats.popleft()
        if found is None:
            return None
        self._heartbeats.appendleft(found)
        return found.time_us if found.end_us is None else found.end_us

    def forget(self) -> None:
        """Begin anew: another query's heartbeats say nothing of this one."""
        self._heartbeats.clear()


def covered(applied: AppliedBatch, heartbeat: Heartbeat) -> bool:
    """Whether the batch has all that the source had at the heartbeat.

    The position alone does not say so: of a source whose offsets are not understood every batch has the same one.
    """
    if heartbeat.source_end is None or (heartbeat.batch is not None and applied.batch < heartbeat.batch):
        return False
    return applied.position.covers(heartbeat.source_end)


def follows(heartbeat: Heartbeat, last: Heartbeat) -> bool:
    """Whether the job went on from the last heartbeat to this one."""
    assert heartbeat.source_end is not None and last.source_end is not None, "others are not kept"
    went_on = last.batch is None or (heartbeat.batch is not None and heartbeat.batch >= last.batch)
    return went_on and heartbeat.source_end.covers(last.source_end)


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


PAUSE_S_MIN = 0.01
PAUSE_S_MAX = 0.1
TOLD_PAUSE_S_MAX = 1.0
STEP_MS = 5  # so often a waiting thread looks whether something was told: a third of a percent of a core
log = logging.getLogger(__name__)
Sign = tuple[tuple[str, int, int], ...]


class Waking:
    """The pauses of one tail. `folders` are watched, those of them that are there; none on a remote file system."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._watched: Sign = ()
        self._notify: RustNotify | None = None
        self._told = self._trusted = False
        self._pause_s = PAUSE_S_MIN

    def wait(self, stop: threading.Event, *, found: bool) -> None:
        """Wait until there may be something new, or it is time to look, or the event is set.

        `found` says whether there was a batch since the last time.
        """
        if found:
            self._trusted = self._told
        pause_s_max = TOLD_PAUSE_S_MAX if self._trusted else PAUSE_S_MAX
        self._pause_s = PAUSE_S_MIN if found else min(2 * self._pause_s, pause_s_max)
        self._watch()
        self._told = self._wait(stop)

    def close(self) -> None:
        """Watch nothing any more."""
        if self._notify is not None:
            self._notify.close()
        self._notify, self._watched = None, ()

    def _wait(self, stop: threading.Event) -> bool:
        """Whether something was told during the pause."""
        if self._notify is None:
            stop.wait(self._pause_s)
            return False
        changes = self._notify.watch(STEP_MS, STEP_MS, max(STEP_MS, int(1_000 * self._pause_s)), stop)
        if not isinstance(changes, set):
            return False
        if {path for _, path in changes} & {path for path, _, _ in self._watched}:
            self._watched = ()  # a folder was made anew, perhaps under the number of the old one: watch it anew
        return True

    def _watch(self) -> None:
        """Watch the folders that are there now: Spark makes `commits` late, and a checkpoint may be replaced."""
        found = _sign(self._folders)
        if found == self._watched:
            return
        self.close()
        try:
            if found:
                self._notify = RustNotify([path for path, _, _ in found], False, False, 0, False, True)
        except (OSError, WatchfilesRustInternalError) as error:
            # It went away again, or there are too many watches on this machine.
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
GAP_CHECK_S = 5.0  # so often a tail that waits for a batch sees whether later ones are there already


class _Replaced(CheckpointGap):
    """The checkpoint is not the one that the replica's batch came from, and its state could not be loaded yet."""


class _Unaccounted(CheckpointGap):
    """The replica does not say of how many partitions its rows are, and its state could not be loaded yet."""


class _Deleted(ReplicaInvalid):
    """The replica's folder was deleted under the tail, and the state could not be loaded into a new one yet."""


class _Invalid(ReplicaInvalid):
    """The replica was damaged, or an older Stateside's, and the state could not be loaded yet."""


class Tail:
    """Moves the replica of one view. `step` does what can be done now; `run` does so until it is told to stop.

    `watch` is told how far it is when the replica has to be loaded. With a share, the replica holds these keys alone.
    `keep` says for how long older batches can be read.
    """

    def __init__(
        self, layout: ViewLayout, *, share: Share | None = None, keep: Keep | None = None, watch: Watch = nobody
    ) -> None:
        self._layout, self._share, self._watch = layout, share, watch
        self._read_catalogue()
        self._catalogue_file: tuple[int, int] | None = None  # the one whose rollups are kept
        self._writer = ReplicaWriter(layout.replica, share=share, keep=keep)
        self._freshness = Freshness(layout.heartbeat)
        self._stop, self._suspected = threading.Event(), threading.Event()
        self._trouble = self._writer.trouble()  # that of a tail before this one, until it moves
        self._logged: str | None = None
        self._gap_checked_s = 0.0

    def run(self, stop: threading.Event) -> None:
        """Follow the checkpoint until the event is set. After an error readers keep the last batch; it tries again."""
        self._stop = stop
        waking = Waking(self._folders())
        while not stop.is_set():
            try:
                found = self.step()
                self._tell(None)
            except LoadStopped:
                break
            except Exception as error:  # whatever it is, the next try may succeed
                self._tell(explained(error, self._checkpoint.storage.root, self._layout.replica))
                stop.wait(ERROR_PAUSE_S)
                continue
            waking.wait(stop, found=found)
        waking.close()
        self._writer.close()

    def step(self) -> bool:
        """Apply every batch that is committed by now, and the newest heartbeat; whether there was a batch.

        If batches are gone before they were read, the checkpoint is another one, or the replica's folder was deleted or
        its files are damaged, the replica is loaded again; CheckpointGap or ReplicaInvalid if it cannot be.
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
            self._load(gap, "It stands behind batches that are gone")
        except _Deleted as deleted:
            log.warning("view %s: the replica's folder was deleted, rebuilding", self._layout.name)
            self._writer.take_place()
            self._load(deleted, "The replica's folder was deleted")
        self._follow()
        return True

    def suspect(self) -> None:
        """Have the next step read all of the replica first: a process that read it was ended by a signal."""
        self._suspected.set()

    def close(self) -> None:
        """Let the replica go."""
        self._writer.close()

    def _read_catalogue(self) -> None:
        """How the checkpoint is read: another query on it may have another catalogue."""
        self._catalogue = Catalogue.load(self._layout.catalogue)
        self._checkpoint = checkpoint_of(self._catalogue, Storage.at(self._layout.checkpoint_location))
        self._translator: Translator | None = None

    def _folders(self) -> list[Path]:
        """What to watch: where Spark commits, and where heartbeats are written."""
        if not isinstance(self._checkpoint.storage.filesystem, pafs.LocalFileSystem):
            return []
        root = Path(self._checkpoint.storage.root)
        return [root, root / "commits", self._layout.heartbeat.parent]

    def _load(self, gap: StatesideError, why: str) -> None:
        """Begin anew beside the old replica, which readers have until then; the gap if no state can be had."""
        trouble = self._trouble
        with self._loading() as load:
            batch = load.secure()
            if batch is None:
                raise gap
            self._note(f"{why}, and batch {batch} is being loaded")
            self._catalogue_file = None  # the writer has to be told anew of the rollups, however the load ends
            try:
                load.run(self._made_translator(), self._declared_rollups(), self._stop, self._watch)
            except BaseException:
                self._note(trouble)
                raise
        self._trouble = None  # as the new replica has it

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
        """Tell the log and the readers, once, that the replica does not move, or that it does again."""
        trouble = None if error is None else str(error)
        if error is not None and trouble != self._logged:
            unexpected = None if isinstance(error, StatesideError) else error
            log.error("view %s: %s", self._layout.name, error, exc_info=unexpected)
        self._logged = trouble
        if trouble == self._trouble:
            return
        try:
            self._note(trouble)
        except StatesideError as unwritten:  # on a full disk, say: readers are told as soon as it can be written
            log.warning("view %s: readers cannot be told of it: %s", self._layout.name, unwritten)

    def _note(self, trouble: str | None) -> None:
        self._writer.note_trouble(trouble)
        self._trouble = trouble

    def _check_in_place(self) -> None:
        """_Deleted if new readers would not find the replica, and those that have it open would be its last ones."""
        if not self._writer.in_place():
            raise _Deleted(
                "The replica's folder was deleted, and there is no state to load yet",
                where=str(self._layout.replica),
                next_step="Let the view run on: it is then loaded from the checkpoint",
            )

    def _check_valid(self) -> None:
        """Damaged, or _Invalid, if readers may not have the replica before it is loaded from the checkpoint."""
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
        """_Replaced if the checkpoint is another one, or was rolled back behind the replica's batch.

        _Unaccounted for a replica that an older version made, which may have left partitions out.
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
            f"The checkpoint was replaced, or rolled back behind batch {applied.batch}, and has no state to load yet",
            where=self._checkpoint.storage.root,
            next_step=f"Let the view run on: readers have batch {applied.batch} of before until then",
        )

    def _advance(self) -> bool:
        applied = self._writer.batch()
        batch = applied.batch + 1 if applied else 0
        if not self._checkpoint.committed(batch):
            if time.monotonic() - self._gap_checked_s >= GAP_CHECK_S:
                self._check_no_gap(batch)  # raises before the time is noted: the next look asks again
                self._gap_checked_s = time.monotonic()
            return False
        self._gap_checked_s = 0.0
        self._apply(batch)
        return True

    def _keep_rollups(self) -> None:
        """Keep the rollups that the catalogue names now: `run` may have been started with others since."""
        found = self._layout.catalogue.stat()
        if (found.st_ino, found.st_mtime_ns) == self._catalogue_file:
            return
        self._writer.keep_rollups(self._declared_rollups())
        self._catalogue_file = (found.st_ino, found.st_mtime_ns)

    def _declared_rollups(self) -> Rollups:
        self._catalogue = Catalogue.load(self._layout.catalogue)
        steps = KnownSteps(self._layout.name, self._layout.steps)
        return rollups_of(self._catalogue, self._checkpoint.storage, steps)

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
        scratch = generations.loading(self._writer.directory) / "version"
        changes: list[lists.Change] = []
        for partition in range(partitions):
            changelog = read_batch_changes(
                self._checkpoint, plan, commit, operator, partition, prefixed=prefixed, scratch=scratch
            )
            changes += translator.changes(commit, partition, changelog)
        return changes

    def _repartitioned(self, batch: int, before: int, after: int) -> list[lists.Plain]:
        """What a batch changed that wrote the whole state into other partitions; as a rule, nothing."""
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
            self._translator = translator_of(self._catalogue, self._checkpoint)
            if self._share is not None:
                key = completed(self._catalogue, self._checkpoint.storage).key
                codec = KeyCodec([column.asked_type for column in key])
                self._translator = SharedTranslator(self._translator, self._share, codec)
        return self._translator

    def _prefixed(self) -> bool:
        """Whether the state has its keys in two parts, if it is in RocksDB."""
        return self._catalogue.kind == "session"

    def _check_no_gap(self, batch: int) -> None:
        """The next batch is not there: fine if it is still to come, an error if later ones are there already."""
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
