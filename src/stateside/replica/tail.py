"""The tail: follows one view's checkpoint and moves its replica on, one transaction a committed batch."""

from __future__ import annotations

import logging
import threading
from collections import deque

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.heartbeat import Heartbeat
from stateside.checkpoint.log import Commit, Plan
from stateside.checkpoint.one_store import checkpoint_of
from stateside.checkpoint.provider import read_batch_changes
from stateside.errors import CheckpointGap, CheckpointInvalid, StatesideError
from stateside.layout import ViewLayout
from stateside.replica import generations
from stateside.replica.load import Load, LoadStopped
from stateside.replica.rollups import Rollups, rollups_of
from stateside.replica.store import AppliedBatch, ReplicaWriter
from stateside.replica.translation import Rows, Translator, translator_of
from stateside.storage import Storage

PAUSE_S_MIN = 0.01
PAUSE_S_MAX = 0.1
ERROR_PAUSE_S = 1.0
POLLS_PER_GAP_CHECK = 50
HEARTBEATS_MAX = 10_000  # so many heartbeats may wait for a batch that covers them: about half an hour

log = logging.getLogger(__name__)


class Tail:
    """Moves the replica of one view. `step` does what can be done now; `run` does so until it is told to stop."""

    def __init__(self, layout: ViewLayout) -> None:
        self._layout = layout
        self._catalogue = Catalogue.load(layout.catalogue)
        self._checkpoint = checkpoint_of(self._catalogue, Storage.at(layout.checkpoint))
        self._catalogue_file: tuple[int, int] | None = None  # the one whose rollups are kept
        self._writer = ReplicaWriter(layout.replica)
        self._heartbeats: deque[Heartbeat] = deque(maxlen=HEARTBEATS_MAX)
        self._translator: Translator | None = None
        self._stop = threading.Event()
        self._trouble = self._writer.trouble()  # that of a tail before this one, until it moves
        self._idle_polls = 0

    def run(self, stop: threading.Event) -> None:
        """Follow the checkpoint until the event is set. After an error readers keep the last batch; it tries again."""
        self._stop = stop
        pause_s = PAUSE_S_MIN
        while not stop.is_set():
            try:
                pause_s = PAUSE_S_MIN if self.step() else min(2 * pause_s, PAUSE_S_MAX)
                self._tell(None)
            except LoadStopped:
                break
            except Exception as error:  # whatever it is, the next try may succeed
                self._tell(error)
                pause_s = ERROR_PAUSE_S
            stop.wait(pause_s)
        self._writer.close()

    def step(self) -> bool:
        """Apply every batch that is committed by now, and the newest heartbeat; whether there was a batch.

        If batches are gone before they were read, the replica is loaded anew; CheckpointGap if it cannot be.
        """
        try:
            return self._follow()
        except CheckpointGap as gap:
            self._load(gap)
        self._follow()
        return True

    def _load(self, gap: CheckpointGap) -> None:
        """Begin anew from the newest snapshots, with readers on the old batch until then; the gap if there are none."""
        view, operator, trouble = self._layout.name, self._catalogue.operator, self._trouble
        with Load(self._checkpoint, operator, self._writer, prefixed=self._prefixed(), view=view) as load:
            batch = load.secure()
            if batch is None:
                raise gap
            self._note(f"It stands behind batches that are gone, and batch {batch} is being loaded from snapshots")
            self._catalogue_file = None  # the writer has to be told anew of the rollups, however the load ends
            try:
                load.run(self._made_translator(), self._declared_rollups(), self._stop)
            except BaseException:
                self._note(trouble)
                raise
        self._trouble = None  # as the new replica has it

    def _follow(self) -> bool:
        self._check_belongs()
        if self._writer.batch() is not None:
            self._keep_rollups()
        self._hear()
        moved = False
        while self._advance():
            moved = True
        if moved:
            self._freshen()
        return moved

    def close(self) -> None:
        """Let the replica go."""
        self._writer.close()

    def _tell(self, error: Exception | None) -> None:
        """Tell the log and the readers, once, that the replica does not move, or that it does again."""
        trouble = None if error is None else str(error)
        if trouble == self._trouble:
            return
        self._note(trouble)
        if error is not None:
            unexpected = None if isinstance(error, StatesideError) else error
            log.error("view %s: %s", self._layout.name, error, exc_info=unexpected)

    def _note(self, trouble: str | None) -> None:
        self._trouble = trouble
        self._writer.note_trouble(trouble)

    def _check_belongs(self) -> None:
        """Begin anew if the checkpoint was replaced, or rolled back behind the replica's batch."""
        applied = self._writer.batch()
        if applied is None or self._checkpoint.fingerprint(applied.batch) == applied.fingerprint:
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
        log.warning("view %s: the checkpoint was replaced or rolled back, rebuilding", self._layout.name)
        self._writer.clear()
        self._heartbeats.clear()
        self._translator = None
        self._catalogue_file = None

    def _advance(self) -> bool:
        applied = self._writer.batch()
        batch = applied.batch + 1 if applied else 0
        if not self._checkpoint.committed(batch):
            if self._idle_polls % POLLS_PER_GAP_CHECK == 0:
                self._check_no_gap(batch)  # raises before the poll is counted: the next one asks again
            self._idle_polls += 1
            return False
        self._idle_polls = 0
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
        return rollups_of(self._catalogue, self._checkpoint.storage)

    def _apply(self, batch: int) -> None:
        self._keep_rollups()
        fingerprint = self._checkpoint.fingerprint(batch)
        plan, commit = self._checkpoint.plan(batch), self._checkpoint.commit(batch)
        query = self._checkpoint.query_id()
        changes = list(self._changes(plan, commit))
        if query is None or fingerprint is None or fingerprint != self._checkpoint.fingerprint(batch):
            raise CheckpointInvalid(
                "The checkpoint was replaced while it was read", where=self._checkpoint.storage.root
            )
        state = AppliedBatch(query, batch, plan.position, plan.watermark_us, commit.committed_us, fingerprint)
        self._writer.apply(state, changes)

    def _changes(self, plan: Plan, commit: Commit) -> Rows:
        operator, prefixed, translator = self._catalogue.operator, self._prefixed(), self._made_translator()
        scratch = generations.loading(self._writer.directory) / "version"
        for partition in range(self._checkpoint.partitions(operator)):
            changelog = read_batch_changes(
                self._checkpoint, plan, commit, operator, partition, prefixed=prefixed, scratch=scratch
            )
            yield from translator.changes(commit, partition, changelog)

    def _made_translator(self) -> Translator:
        if self._translator is None:
            self._translator = translator_of(self._catalogue, self._checkpoint)
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

    def _hear(self) -> None:
        heartbeat = Heartbeat.load(self._layout.heartbeat)
        if heartbeat is None or heartbeat.source_end is None:
            return
        if not self._heartbeats or self._heartbeats[-1] != heartbeat:
            if self._heartbeats and not _follows(heartbeat, self._heartbeats[-1]):
                self._heartbeats.clear()  # those of a job that was replaced: no batch may ever cover them
            self._heartbeats.append(heartbeat)
            self._freshen()

    def _freshen(self) -> None:
        """The newest heartbeat whose source's end the batch covers tells until when the batch was up to date."""
        applied = self._writer.batch()
        covered = None
        while applied and self._heartbeats and _covered(applied, self._heartbeats[0]):
            covered = self._heartbeats.popleft()
        if covered:
            self._heartbeats.appendleft(covered)
            self._writer.freshen(covered.time_us if covered.end_us is None else covered.end_us)


def _covered(applied: AppliedBatch, heartbeat: Heartbeat) -> bool:
    """Whether the batch has all that the source had at the heartbeat.

    The position alone does not say so: of a source whose offsets are not understood every batch has the same one.
    """
    if heartbeat.source_end is None or (heartbeat.batch is not None and applied.batch < heartbeat.batch):
        return False
    return applied.position.covers(heartbeat.source_end)


def _follows(heartbeat: Heartbeat, last: Heartbeat) -> bool:
    assert heartbeat.source_end is not None and last.source_end is not None, "others are not kept"
    went_on = last.batch is None or (heartbeat.batch is not None and heartbeat.batch >= last.batch)
    return went_on and heartbeat.source_end.covers(last.source_end)
