"""Bootstrap: loads a replica from snapshots of the state, when the batches between the replica and now are gone.

A batch that Spark wrote as snapshots alone, after a repartitioning of the state, is loaded in the same way, but then
compared with the replica, which applies the difference.

1. Choose the newest committed batch whose state is available in every partition: a snapshot, and all later changelogs.
2. Secure the files, by links or copies in the replica's folder: Spark may delete its own at any moment.
3. Fill a new environment beside the present one, with all rows in key order and with the rollups, in bounded memory.
   Readers do not see the new environment.
4. Make the new environment durable, then let it replace the old one, atomically (`core.generations`).

A crash before step 4 leaves the old replica, a crash after it the new one. The next start removes leftovers.

Step 3 sorts the rows first and then appends them: LMDB fills its pages one after the other, each to the end. In any
other order every transaction would copy many pages of earlier ones. `SortedRuns` is an external merge sort:

1. Changes collect in memory. At `RUN_BYTES` they are sorted, cut into pages and written to an unnamed file: a run. The
   first key of every page stays in memory.
2. In the end the pages are read in the order of their first keys, some at a time. Changes before the first key of all
   remaining pages are complete: they are sorted, and returned.

So each change is written once and read once, whatever their number. Of several changes to one key the last one counts.

Progress (`LoadCounter`), for the log and for a progress bar: the number of rows is unknown before they are read, but
the sizes of the files are known. So progress of reading, the first 40 % of the work, counts bytes: of partitions read,
and within a partition by rows, at the other partitions' bytes per row. The rest, storing the rows in LMDB, counts rows.
"""

from __future__ import annotations

import logging
import marshal
import shutil
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import attrgetter, itemgetter
from pathlib import Path

import lmdb

from stateside.core.errors import CheckpointInvalid
from stateside.core.storage import Storage
from stateside.replica import lists
from stateside.replica.environment import Databases, loading_folder, open_environment, sync, write
from stateside.replica.integrity import Integrity
from stateside.replica.key_table import Ordered
from stateside.replica.rollup_tables import Rollups
from stateside.replica.shard import Share
from stateside.replica.store import AppliedBatch, ReplicaWriter
from stateside.replica.translation import Rows, Translator
from stateside.spark_state.batch_log import Checkpoint, Commit, Plan
from stateside.spark_state.changelog import check_encoding
from stateside.spark_state.checksum import checksum_names
from stateside.spark_state.provider import Chain, newest_chain

RUN_BYTES = 128 * 1024 * 1024  # approximate memory of the changes before they become a run
PAGE_ROWS = 1_000  # fewer if large rows would exceed PAGE_BYTES
PAGE_BYTES = 1024 * 1024
PAGES_AT_ONCE = 16  # more would not fit into the processor's caches
ROWS_AT_ONCE = 1_000
BATCHES_TRIED_MAX = 10  # if none of the newest is available, older ones would only lead back to the same gap
CHOICES_MAX = 5  # attempts: Spark may delete files while they are being secured
LOG_S = 5.0
WATCH_S = 0.2
READING_SHARE = 0.4  # of the work
_CHANGE_BYTES = 250  # overhead of a change in a dict and in a list
_WITHOUT_REFERENCES = 2  # marshal's version: later ones search for shared objects
_key, _row = itemgetter(0), itemgetter(1)
Change = tuple[bytes, bytes | None]
Row = tuple[bytes, bytes]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _RunPage:
    """A page of a run: its first key, the run's number, and its place in the file."""

    first: bytes
    run: int
    begin: int
    size: int


class SortedRuns:
    """Takes changes in any order, then returns the resulting rows in key order, each once."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - `close` does so
        self._changes: dict[bytes, bytes | None] = {}
        self._size = 0
        self._pages: list[_RunPage] = []
        self._runs = 0

    def add(self, changes: Iterable[Change]) -> None:
        """Add changes, later than all earlier ones."""
        for_now = list(changes)
        self._changes.update(for_now)
        self._size += _CHANGE_BYTES * len(for_now) + _bytes(map(_key, for_now)) + _bytes(map(_row, for_now))
        if self._size >= RUN_BYTES:
            self._write_run()

    def merged(self) -> Iterator[list[Row]]:
        """All rows in order, in several lists."""
        if not self._pages:  # no run was written
            rows, some = _left(self._changes.items()), PAGES_AT_ONCE * self._page_rows()
            self._changes = {}
            yield from (rows[at : at + some] for at in range(0, len(rows), some))
            return
        self._write_run()
        self._pages.sort(key=attrgetter("first"))
        waiting: list[list[Change]] = [[] for _ in range(self._runs)]
        for at in range(0, len(self._pages), PAGES_AT_ONCE):
            for page in self._pages[at : at + PAGES_AT_ONCE]:
                waiting[page.run] += self._read(page)
            to_come = self._pages[at + PAGES_AT_ONCE : at + PAGES_AT_ONCE + 1]
            ready = [change for run in waiting for change in _taken(run, to_come[0].first if to_come else None)]
            yield _left(dict(ready).items())

    def close(self) -> None:
        self._file.close()

    def _write_run(self) -> None:
        changes, page_rows = sorted(self._changes.items(), key=_key), self._page_rows()
        self._changes, self._size = {}, 0
        for at in range(0, len(changes), page_rows):
            page = changes[at : at + page_rows]
            content = marshal.dumps(page, _WITHOUT_REFERENCES)
            self._pages.append(_RunPage(page[0][0], self._runs, self._file.tell(), len(content)))
            self._file.write(content)
        self._runs += 1

    def _page_rows(self) -> int:
        return max(1, min(PAGE_ROWS, PAGE_BYTES * len(self._changes) // max(self._size, 1)))

    def _read(self, page: _RunPage) -> list[Change]:
        self._file.seek(page.begin)
        changes: list[Change] = marshal.loads(self._file.read(page.size))
        return changes


def _bytes(parts: Iterable[bytes | None]) -> int:
    return sum(map(len, filter(None, parts)))


def _taken(run: list[Change], bound: bytes | None) -> list[Change]:
    """Remove and return the changes of a run before a key, or all of them."""
    end = len(run) if bound is None else bisect_left(run, bound, key=_key)
    taken = run[:end]
    del run[:end]
    return taken


def _left(changes: Iterable[Change]) -> list[Row]:
    """The rows left by changes with distinct keys, in order."""
    return [(key, row) for key, row in sorted(changes, key=_key) if row is not None]


class NewReplica:
    """An environment filled while readers still use the old one; `ReplicaWriter.switch` replaces the old one.

    Rollups are maintained from the first row on, so that readers never see rows without them. Nothing is durable before
    `finish`.
    """

    def __init__(self, folder: Path, name: str, rollups: Rollups, share: Share | None = None) -> None:
        self.folder = folder
        self._rollups = rollups
        self._opened = ExitStack()
        try:
            self._environment = open_environment(folder, sync=False)
            self._opened.callback(self._environment.close)
            self._runs = SortedRuns(folder)
            self._opened.callback(self._runs.close)
            self._databases = Databases(self._environment)
            self._note(b"replica", name.encode())
            self._note(b"rollups", rollups.as_json())
            if share is not None:
                self._note(b"share", str(share).encode())
        except BaseException:
            self.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def put(self, changes: Iterable[lists.Change]) -> None:
        """Add changes; of several to one key the last one counts, and changes to a list are applied in order."""
        given = list(changes)
        plain = lists.plain(given)
        if plain is None:
            write(self._environment, partial(self._settle, given))
        else:
            self._runs.add(plain)

    def finish(self, batch: AppliedBatch, stored: Callable[[int], None] = lambda rows: None) -> None:
        """Store the rows and their batch durably, and close the environment.

        Calls `stored` after each transaction with its number of rows; an exception from `stored` ends the load.
        """
        for rows in self._runs.merged():
            write(self._environment, partial(self._append, rows))
            stored(len(rows))
        self._note(b"batch", batch.as_json())
        sync(self._environment)
        Integrity(self.folder, self._environment, new=True).close()
        self.close()

    def close(self) -> None:
        self._opened.close()

    def _settle(self, changes: list[lists.Change], transaction: lmdb.Transaction) -> None:
        """A list's changes depend on its entries, so they are stored at once. A view of a list has no rollups."""
        rows = Ordered(transaction, self._databases.rows)
        rows.put_all(lists.settled(changes, rows))

    def _append(self, rows: list[tuple[bytes, bytes]], transaction: lmdb.Transaction) -> None:
        Ordered(transaction, self._databases.rows).append(rows)
        self._rollups.add_all(iter(rows), Ordered(transaction, self._databases.rollups))

    def _note(self, name: bytes, content: bytes) -> None:
        write(self._environment, lambda transaction: transaction.put(name, content, db=self._databases.meta))


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A bootstrap at one moment: its view and batch, the rows read so far, and the fraction done, from 0 to 1."""

    view: str
    batch: int
    rows: int
    done: float


Watch = Callable[[LoadProgress], None]


def nobody(progress: LoadProgress) -> None:
    """A watch that does nothing."""


class LoadCounter:
    """Counters of one bootstrap; reports to the watch every `WATCH_S`, and to the log every `LOG_S`."""

    def __init__(self, view: str, batch: int, total_bytes: int, watch: Watch) -> None:
        self._view, self._batch, self._watch = view, batch, watch
        self._total_bytes, self._read_bytes = max(total_bytes, 1), 0
        self._rows = self._rows_of_parts = self._stored_rows = 0
        self._level = logging.INFO
        self._begun_s = self._watched_s = self._logged_s = time.monotonic()

    def read(self, rows: int) -> None:
        """`rows` more rows of the present partition were read."""
        self._rows += rows
        self._tell()

    def end_of_part(self, size_bytes: int) -> None:
        """The present partition is read; its files had `size_bytes` bytes."""
        self._read_bytes, self._rows_of_parts = self._read_bytes + size_bytes, self._rows
        self._tell()

    def stored(self, rows: int) -> None:
        """`rows` more rows were stored. Reading has ended."""
        self._stored_rows += rows
        self._tell()

    def end(self) -> None:
        self._watch(LoadProgress(self._view, self._batch, self._rows, 1.0))
        self._log("was loaded")

    def _done(self) -> float:
        in_part = self._rows - self._rows_of_parts
        by_rows = self._read_bytes * in_part / self._rows_of_parts if self._rows_of_parts else 0
        reading = min(1.0, (self._read_bytes + by_rows) / self._total_bytes)
        storing = self._stored_rows / max(self._rows, 1)
        return READING_SHARE * reading + (1 - READING_SHARE) * storing

    def _tell(self) -> None:
        now_s = time.monotonic()
        if now_s - self._watched_s >= WATCH_S:
            self._watched_s = now_s
            self._watch(LoadProgress(self._view, self._batch, self._rows, self._done()))
        if now_s - self._logged_s >= LOG_S:
            self._logged_s, self._level = now_s, logging.WARNING  # a long one must be visible
            self._log(f"is being loaded, {self._done():.0%} done,")

    def _log(self, done: str) -> None:
        per_s = self._rows / max(time.monotonic() - self._begun_s, 1e-3)
        how = f"{self._rows:,} rows, {per_s:,.0f} rows/s"
        log.log(self._level, "view %s: batch %d %s from snapshots, %s", self._view, self._batch, done, how)


class LoadStopped(Exception):
    """The process is to end: the load was abandoned, and the old replica stays."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A batch to load, and the files of its state in each partition."""

    state: AppliedBatch
    chains: tuple[Chain, ...]


class Bootstrap:
    """One load of one view's replica, in a `with`: `secure`, then `run`. The replica stays unchanged until the end."""

    def __init__(
        self, checkpoint: Checkpoint, operator: int, writer: ReplicaWriter, *, prefixed: bool, view: str
    ) -> None:
        self._checkpoint, self._operator, self._writer = checkpoint, operator, writer
        self._prefixed, self._view = prefixed, view
        self._scratch = loading_folder(writer.directory)
        self._choice: Choice | None = None
        self._only: int | None = None
        self._damaged: dict[str, CheckpointInvalid] = {}  # snapshots to skip, by name

    def __enter__(self) -> Bootstrap:
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def secure(self, only: int | None = None) -> int | None:
        """Choose the newest available batch, or `only` this one, and secure its files; None if there is none.

        CheckpointInvalid, of the newest one, if only damaged snapshots prevent a choice.
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
        for error in self._damaged.values():  # the error of the newest one
            raise error
        return None

    def run(self, translator: Translator, rollups: Rollups, stop: threading.Event, watch: Watch = nobody) -> None:
        """Load the batch, with these rollups, and switch readers to it. LoadStopped soon after `stop` is set.

        A damaged snapshot is skipped for an older one. `watch` receives the progress several times a second.
        """
        self._writer.switch(self._filled(translator, rollups, stop, watch))

    def differences(self, translator: Translator, stop: threading.Event, watch: Watch = nobody) -> list[lists.Plain]:
        """The changes from the replica's rows to those of the batch. Otherwise as `run`; the replica stays."""
        folder = self._filled(translator, Rollups(), stop, watch)
        try:
            return self._writer.differences(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _filled(self, translator: Translator, rollups: Rollups, stop: threading.Event, watch: Watch) -> Path:
        """The folder of a new environment with the batch."""
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
                    LoadCounter(self._view, self._choice.state.batch, size_bytes, watch),
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
        """The error with the path of the file in the checkpoint, not of its copy."""
        where = (error.where or "").replace(Storage.at(self._scratch).root, self._checkpoint.storage.root)
        return CheckpointInvalid(error.what, where=where, next_step=error.next_step)

    def _bring(self, choice: Choice) -> None:
        storage = self._checkpoint.storage
        for chain in choice.chains:
            with _snapshot_of(chain):
                names = chain.file_names(storage)
            for name in dict.fromkeys(names):
                storage.bring(name, self._scratch / name)
                for checksum in checksum_names(name):
                    with suppress(FileNotFoundError):  # not every file has checksums
                        storage.bring(checksum, self._scratch / checksum)

    def _choose(self) -> Choice | None:
        newest = self._checkpoint.commits()[: -1 - BATCHES_TRIED_MAX : -1]
        for batch in newest if self._only is None else [self._only]:
            plan, commit = self._checkpoint.plan(batch), self._checkpoint.commit(batch)
            chains = []
            for partition in range(self._checkpoint.partitions(self._operator, plan, commit)):
                chain = newest_chain(self._checkpoint, plan, commit, self._operator, partition, self._damaged)
                if chain is None:
                    break
                chains.append(chain)
            else:
                return Choice(self._state(plan, commit, len(chains)), tuple(chains))
        return None

    def _state(self, plan: Plan, commit: Commit, partitions: int) -> AppliedBatch:
        check_encoding(plan, self._checkpoint.storage.path(f"offsets/{commit.batch}"))
        query, fingerprint = self._checkpoint.query_id(), self._checkpoint.fingerprint(commit.batch)
        if query is None or fingerprint is None:
            raise FileNotFoundError(self._checkpoint.storage.path(f"commits/{commit.batch}"))
        return AppliedBatch(
            query, commit.batch, plan.position, plan.watermark_us, commit.committed_us, fingerprint, partitions
        )

    def _fill(
        self, new: NewReplica, choice: Choice, translator: Translator, progress: LoadCounter, stop: threading.Event
    ) -> None:
        def stored(count: int) -> None:
            progress.stored(count)
            _go_on(stop)

        try:
            for chain in choice.chains:
                rows = iter(self._rows(chain, translator))
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

    def _bytes_of(self, chain: Chain) -> int:
        """The size of this partition's secured files."""
        folder = self._scratch / "state" / str(chain.operator) / str(chain.partition)
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def _rows(self, chain: Chain, translator: Translator) -> Rows:
        secured, opened = Storage.at(self._scratch), self._scratch / "opened" / str(chain.partition)
        if chain.snapshot is not None:
            with _snapshot_of(chain), chain.open_snapshot(secured, opened) as snapshot:
                yield from translator.snapshot(chain.partition, snapshot)
        for commit in chain.changes:
            changelog = chain.read_changes(secured, commit, prefixed=self._prefixed)
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
def _snapshot_of(chain: Chain) -> Iterator[None]:
    """Attributes an error in the block to the chain's snapshot."""
    try:
        yield
    except CheckpointInvalid as error:
        name = chain.snapshot_name()
        if name is None:
            raise
        raise _SnapshotDamaged(name, error) from error
