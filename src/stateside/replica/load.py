"""Loads a replica anew from snapshots of the state, when the batches between it and now are gone.

A batch that Spark wrote as snapshots alone, since it repartitioned the state, is loaded in the same way, but then
compared with the replica, which goes on from there with the difference.

1. Choose the newest committed batch whose state can be had in every partition: a snapshot, and all changelogs after it.
2. Secure the files needed, by links or copies in the replica's folder: Spark may delete its own at any moment.
3. Fill a new environment beside the present one, with all rows in the order of their keys and with the rollups, in
   bounded memory. Readers do not see it.
4. Make it durable, then let it take the place of the old one, in one step (`generations`).

A crash before step 4 leaves the old replica, one after it the new one. What is left over goes at the next start.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from stateside.checkpoint.changelog import check_encoding, read_changelog
from stateside.checkpoint.checksum import checksum_names
from stateside.checkpoint.delta import DeltaChain, newest_delta_chain, read_delta
from stateside.checkpoint.log import Checkpoint, Commit, Plan
from stateside.checkpoint.provider import Provider, provider_of
from stateside.checkpoint.snapshot import Chain, StateSnapshot, file_names, newest_chain
from stateside.errors import CheckpointInvalid
from stateside.replica import generations, lists
from stateside.replica.new_replica import NewReplica
from stateside.replica.progress import Progress, Watch, nobody
from stateside.replica.rollups import Rollups
from stateside.replica.store import AppliedBatch, ReplicaWriter
from stateside.replica.translation import Rows, Translator
from stateside.storage import Storage

ROWS_AT_ONCE = 1_000
BATCHES_TRIED_MAX = 10  # if none of the newest can be had, older ones would only lead back to the same gap
CHOICES_MAX = 5  # Spark deletes files while they are being secured: so often others are chosen

log = logging.getLogger(__name__)

AnyChain = Chain | DeltaChain


class LoadStopped(Exception):
    """The process is to end: the load was given up, and the old replica stays."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A batch that can be loaded, and what its state is made of in each partition."""

    state: AppliedBatch
    chains: tuple[AnyChain, ...]


class Load:
    """One load of one view's replica, in a `with`: `secure`, then `run`. Until the end the replica stays as it is."""

    def __init__(
        self, checkpoint: Checkpoint, operator: int, writer: ReplicaWriter, *, prefixed: bool, view: str
    ) -> None:
        self._checkpoint, self._operator, self._writer = checkpoint, operator, writer
        self._prefixed, self._view = prefixed, view
        self._scratch = generations.loading(writer.directory)
        self._choice: Choice | None = None
        self._only: int | None = None
        self._damaged: dict[str, CheckpointInvalid] = {}  # snapshots that are passed over, by name

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def secure(self, only: int | None = None) -> int | None:
        """Choose the newest batch that can be had, or `only` this one, and secure its files; None if there is none.

        CheckpointInvalid, of the newest one, if there would be one but for snapshots that are damaged.
        """
        self._only = only
        for _ in range(CHOICES_MAX):
            shutil.rmtree(self._scratch, ignore_errors=True)
            try:
                choice = self._choose()
                if choice is None:
                    break
                self._bring(choice)
            except FileNotFoundError:
                continue  # Spark deleted it just now: there is a newer one
            except _SnapshotDamaged as damaged:
                self._pass_over(damaged)
                continue
            if self._checkpoint.fingerprint(choice.state.batch) == choice.state.fingerprint:
                self._choice = choice
                return choice.state.batch
        for error in self._damaged.values():  # that of the newest one
            raise error
        return None

    def run(self, translator: Translator, rollups: Rollups, stop: threading.Event, watch: Watch = nobody) -> None:
        """Load that batch, with these rollups, and let readers have it. LoadStopped soon after the event was set.

        A snapshot that turns out to be damaged is passed over for an older one. `watch` is told how far it is, several
        times a second.
        """
        self._writer.switch(self._filled(translator, rollups, stop, watch))

    def differences(self, translator: Translator, stop: threading.Event, watch: Watch = nobody) -> list[lists.Plain]:
        """The changes that make the replica's rows those of that batch. Otherwise as `run`; the replica stays."""
        folder = self._filled(translator, Rollups(), stop, watch)
        try:
            return self._writer.differences(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _filled(self, translator: Translator, rollups: Rollups, stop: threading.Event, watch: Watch) -> Path:
        """The folder of a new environment with that batch."""
        while True:
            assert self._choice is not None, "its files are secured first"
            folder, name = self._writer.next_folder(), self._writer.name()
            new = NewReplica(folder, name, rollups, self._writer.share)
            size_bytes = sum(map(self._bytes_of, self._choice.chains))
            try:
                self._fill(
                    new,
                    self._choice,
                    translator,
                    Progress(self._view, self._choice.state.batch, size_bytes, watch),
                    stop,
                )
                return new.folder
            except _SnapshotDamaged as damaged:
                self._pass_over(damaged)
                self.secure(self._only)  # raises if there is no other
            except CheckpointInvalid as error:
                raise self._in_checkpoint(error) from error

    def _pass_over(self, damaged: _SnapshotDamaged) -> None:
        self._damaged[damaged.name] = self._in_checkpoint(damaged.error)
        log.warning("view %s: an older snapshot is looked for. %s", self._view, self._damaged[damaged.name])

    def _in_checkpoint(self, error: CheckpointInvalid) -> CheckpointInvalid:
        """The error with the place of the file in the checkpoint, not that of its copy."""
        where = (error.where or "").replace(Storage.at(self._scratch).root, self._checkpoint.storage.root)
        return CheckpointInvalid(error.what, where=where, next_step=error.next_step)

    def _bring(self, choice: Choice) -> None:
        storage = self._checkpoint.storage
        for chain in choice.chains:
            with _snapshot_of(chain):
                names = chain.file_names() if isinstance(chain, DeltaChain) else file_names(storage, chain)
            for name in dict.fromkeys(names):
                storage.bring(name, self._scratch / name)
                for checksum in checksum_names(name):
                    with suppress(FileNotFoundError):  # not every file has them
                        storage.bring(checksum, self._scratch / checksum)

    def _choose(self) -> Choice | None:
        newest = self._checkpoint.commits()[: -1 - BATCHES_TRIED_MAX : -1]
        for batch in newest if self._only is None else [self._only]:
            plan, commit = self._checkpoint.plan(batch), self._checkpoint.commit(batch)
            chains = []
            for partition in range(self._checkpoint.partitions(self._operator, plan, commit)):
                chain = self._newest_chain(plan, commit, partition)
                if chain is None:
                    break
                chains.append(chain)
            else:
                return Choice(self._state(plan, commit, len(chains)), tuple(chains))
        return None

    def _newest_chain(self, plan: Plan, commit: Commit, partition: int) -> AnyChain | None:
        storage = self._checkpoint.storage
        provider = provider_of(plan, storage.path(f"offsets/{commit.batch}"))
        newest = newest_delta_chain if provider is Provider.HDFS else newest_chain
        return newest(storage, commit, self._operator, partition, self._damaged)

    def _state(self, plan: Plan, commit: Commit, partitions: int) -> AppliedBatch:
        check_encoding(plan, self._checkpoint.storage.path(f"offsets/{commit.batch}"))
        query, fingerprint = self._checkpoint.query_id(), self._checkpoint.fingerprint(commit.batch)
        if query is None or fingerprint is None:
            raise FileNotFoundError(self._checkpoint.storage.path(f"commits/{commit.batch}"))
        return AppliedBatch(
            query, commit.batch, plan.position, plan.watermark_us, commit.committed_us, fingerprint, partitions
        )

    def _fill(
        self, new: NewReplica, choice: Choice, translator: Translator, progress: Progress, stop: threading.Event
    ) -> None:
        def stored(count: int) -> None:
            progress.stored(count)
            _go_on(stop)

        try:
            for chain in choice.chains:
                rows = iter(self._rows_of(chain, translator))
                while part := list(islice(rows, ROWS_AT_ONCE)):
                    new.put(part)
                    progress.read(len(part))
                    _go_on(stop)
                progress.end_of_part(self._bytes_of(chain))
            new.finish(choice.state, stored)
        except BaseException:
            new.close()
            shutil.rmtree(new.folder, ignore_errors=True)
            raise
        progress.end()

    def _bytes_of(self, chain: AnyChain) -> int:
        """How much of the secured files is this partition's."""
        folder = self._scratch / "state" / str(chain.operator) / str(chain.partition)
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def _rows_of(self, chain: AnyChain, translator: Translator) -> Rows:
        return self._delta_rows(chain, translator) if isinstance(chain, DeltaChain) else self._rows(chain, translator)

    def _delta_rows(self, chain: DeltaChain, translator: Translator) -> Rows:
        secured = Storage.at(self._scratch)
        snapshot = chain.snapshot_at(secured)
        if snapshot is not None:
            with _snapshot_of(chain):
                yield from translator.snapshot(chain.partition, snapshot)
        for commit in chain.deltas:
            delta = read_delta(secured, commit, chain.operator, chain.partition)
            yield from translator.changes(commit, chain.partition, delta)

    def _rows(self, chain: Chain, translator: Translator) -> Rows:
        secured, name = Storage.at(self._scratch), chain.snapshot_name()
        if name is not None:
            opened = self._scratch / "opened" / str(chain.partition)
            with _snapshot_of(chain), StateSnapshot(secured, name, opened) as snapshot:
                yield from translator.snapshot(chain.partition, snapshot)
        for commit in chain.changelogs:
            changelog = read_changelog(secured, commit, chain.operator, chain.partition, prefixed=self._prefixed)
            yield from translator.changes(commit, chain.partition, changelog)


def _go_on(stop: threading.Event) -> None:
    if stop.is_set():
        raise LoadStopped


class _SnapshotDamaged(Exception):
    """The snapshot of this name cannot be read."""

    def __init__(self, name: str, error: CheckpointInvalid) -> None:
        super().__init__(name)
        self.name, self.error = name, error


@contextmanager
def _snapshot_of(chain: AnyChain) -> Iterator[None]:
    """While a chain's snapshot is read: says of an error that it was there."""
    try:
        yield
    except CheckpointInvalid as error:
        named = chain.snapshot.name() if isinstance(chain, DeltaChain) and chain.snapshot else None
        name = chain.snapshot_name() if isinstance(chain, Chain) else named
        if name is None:
            raise
        raise _SnapshotDamaged(name, error) from error
