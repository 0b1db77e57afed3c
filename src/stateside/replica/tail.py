"""The tail: follows one view's checkpoint and moves its replica on, one transaction a committed batch.

Whatever goes wrong, readers keep the last batch, are told why it is not a newer one, and the tail tries again.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pyarrow.fs as pafs

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.computed import KnownSteps
from stateside.checkpoint.log import Commit, Plan
from stateside.checkpoint.one_store import checkpoint_of
from stateside.checkpoint.provider import read_batch_changes
from stateside.checkpoint.variable_catalogue import completed
from stateside.errors import CheckpointGap, CheckpointInvalid, ReplicaInvalid, StatesideError
from stateside.layout import ViewLayout
from stateside.replica import generations, lists
from stateside.replica.checksums import Damaged
from stateside.replica.freshness import Freshness
from stateside.replica.history import Keep
from stateside.replica.keys import KeyCodec
from stateside.replica.load import Load, LoadStopped
from stateside.replica.progress import Watch, nobody
from stateside.replica.rollups import Rollups, rollups_of
from stateside.replica.share import Share
from stateside.replica.sharing import SharedTranslator
from stateside.replica.store import AppliedBatch, ReplicaWriter
from stateside.replica.translation import Translator, translator_of
from stateside.replica.trouble import explained
from stateside.replica.waking import Waking
from stateside.storage import Storage

ERROR_PAUSE_S = 1.0
GAP_CHECK_S = 5.0  # so often a tail that waits for a batch sees whether later ones are there already

log = logging.getLogger(__name__)


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
        except (Damaged, _Invalid) as invalid:
            if isinstance(invalid, Damaged):
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

    def _loading(self) -> Load:
        return Load(
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
