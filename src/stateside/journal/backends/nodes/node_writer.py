"""A node's writer: the owner of the node's log, which assigns sequences to the events of its entities."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pyarrow as pa

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import EntityElsewhere, JournalAway, SettingInvalid
from stateside.core.positions import Position
from stateside.core.storage import CLOSED, try_lock
from stateside.journal.append_batch import AppendRequest, EventPlace
from stateside.journal.backends.files.file_writer import NODES, SEGMENT_BYTES_MAX
from stateside.journal.backends.files.lock import WAIT_S_MAX
from stateside.journal.backends.files.segment import PARTITION
from stateside.journal.backends.nodes.log import (
    FencedLog,
    NodeLog,
    complete_logs,
    epochs,
    log_name,
    node_logs,
    reaching,
)
from stateside.journal.backends.nodes.node_index import KnownIds, Lasts, copy_index
from stateside.journal.backends.nodes.ownership import (
    NodeSlots,
    become_owner,
    check_folder,
    check_name,
    giving_back,
    opening,
    seal_earlier,
    slot_of,
)
from stateside.journal.event import Event
from stateside.journal.group_commit import GroupCommit, Told
from stateside.journal.receipt import StoredEvent
from stateside.journal.writer import LogWriter, Names, OneLog, Result


class NodeWriter(LogWriter):
    """The owner of a node. Threads may share it. Each entity is written by one node at a time (`ownership`).

    How a process becomes the owner:

    1. The process locks `opening`, so that no other process opens this node meanwhile. The death of a process releases
       the lock.
    2. The process makes the folder of its epoch if it is missing, and locks `owner` in the folder, for life. With
       `take_over` the epoch is the next one. Without, the epoch is the last owner's: if the last owner lives,
       JournalLocked; else the new owner continues the log, as after a crash. A crash here leaves an empty folder.
    3. The process claims the node's lease: `epoch` names the epoch and the new owner's token, durably (`core.lease`).
       From here on the former owner is fenced: wherever it was paused, it acknowledges nothing more. A crash here
       leaves an epoch with an empty log, which the next owner continues; an epoch without a folder has lost its log.
    4. The owner seals the unsealed logs of earlier epochs (`log.seal` has the argument). A crash here leaves each log
       sealed or not; the next owner repeats the step.
    5. The owner renews the node's slots, so that no late release by a former owner can take effect.
    6. The owner opens its own log, unlocks `opening`, starts its index from a copy of the last epoch's, and reads the
       rest of the logs.

    How an append becomes durable and is acknowledged:

    1. The events are checked and packed. Free slots are granted to this node; if another node has an entity's slot,
       EntityElsewhere. After a grant the index follows all logs (`ownership`).
    2. The owner takes the turn of its log, which settles the remains of a failed append, and the index takes the result
       in.
    3. If the ids are stored already, the append returns the first receipt. Else each event gets its entity's next
       sequence.
    4. The frame is written and synced. A crash leaves a torn frame, or a whole frame without acknowledgement.
    5. The owner reads `epoch`: JournalFenced if the file names another owner.
    6. The end mark is moved: mergers see the events.
    7. The index takes the events in, in memory. The append returns the receipt: Position `NAME.EPOCH:OFFSET`, just
       after the events.

    Why an acknowledged event is never lost: the event lies in its log before every later seal (`log.seal`), and a log
    without a seal is a journal. Why no two events have the same entity and sequence: a node's owner knows all events of
    its log (step 2); it read the events of earlier owners, up to their seals, when opened, and the entity's events at
    other nodes when it got the slot. No other node writes to the slot meanwhile.

    A `shared` node is owned by several processes of one machine together: servers, the clockwork, commands. The first
    one becomes the owner as above; later ones join, in step 3, with the token of that owner, and hold the lock with it.
    They take turns in the log, as writers of a journal on files do; in step 2 of an append the index reads the events
    of the others. Each process has an index of its own. No process releases a slot of a shared node, as the others
    would not notice: a takeover does.

    An append that failed between steps 4 and 7 may be stored without a receipt. The same append again, at this node or
    at the node that has the entities by then, returns the first receipt in this case.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        take_over: bool = False,
        shared: bool = False,
        clock: Clock | None = None,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        wait_s_max: float = WAIT_S_MAX,
    ) -> None:
        check_name(name)
        check_folder(folder)
        self.name, self._folder, self._node, self._shared = name, folder, folder / NODES / name, shared
        super().__init__(clock or SystemClock())
        self._logs: dict[str, NodeLog] = {}  # all logs, once they were looked up in this turn
        with reaching(self._node), opening(self._node, wait_s_max):
            self._held, self._lock, joined = become_owner(self._node, take_over, shared)
            self.epoch = self._held.claim.epoch
            self.log = log_name(name, self.epoch)
            with giving_back(self._lock):
                seal_earlier(self._node, self.epoch)
                self._slots = NodeSlots(folder)
                self._granted = self._slots.of(name) if joined else self._slots.renew(name, self._held.check)
                directory = self._node / str(self.epoch)
                self._log = FencedLog(directory, self._held, clock=self._clock, segment_bytes_max=segment_bytes_max)
        with giving_back(self._lock), ExitStack() as opened:
            opened.callback(self._log.close)
            number, claim = _claimed(directory)
            opened.callback(os.close, claim)
            index, places = (self._started_index(name, number) for name in ("index", "places"))
            self._index = Lasts(index, self._all_logs)
            opened.callback(self._index.close)
            self._index.follow()
            self._known = KnownIds(places, self.log, self._all_logs, folder)
            self._claim_lock = claim
            opened.pop_all()  # nothing failed: keep all of them open

    @property
    def end(self) -> Position:
        """The position after the last event of this node's log, as of its last append."""
        return Position.of({self.log: self._offset})

    @property
    def _offset(self) -> int:
        return self._log.end[PARTITION]

    @property
    def slots(self) -> list[int]:
        """The numbers of the node's slots."""
        return sorted(self._granted)

    def last_sequence(self, entity: str) -> int:
        """The sequence of the entity's last event; 0 if there is none. The entity belongs to this node from now on."""
        (last,) = self._in_turn(lambda: self._lasts([entity]), lambda: [entity])
        return last

    def claim(self, slots: Iterable[int]) -> None:
        """Claim free slots; EntityElsewhere for a slot of another node."""
        with self._alone():
            self._claim(set(slots))

    def release(self, slots: Iterable[int]) -> None:
        """Release slots, so that another node can claim them: steps 1 to 3 of `ownership`."""
        if self._shared:
            raise SettingInvalid(
                f"Several processes share the node {self.name}, and would go on appending to these slots",
                where=str(self._node),
                next_step=f"Take the node over, then release them: NodeWriter(folder, {self.name!r}, take_over=True)",
            )
        with self._alone():
            self._held.check()
            with self._log.turn():  # settles the remains of a failed append: stored or not
                self._log.sync_mark()
            for slot in sorted(self._granted.intersection(slots)):
                self._granted.discard(slot)
                self._slots.release(slot, self.name, self._held.check)

    def close(self) -> None:
        """Give up the node. All acknowledged events are durable; the slots stay the node's.

        Idempotent. Later appends raise JournalAway.
        """
        with self._appending:
            if self._lock == CLOSED:
                return
            lock, self._lock = self._lock, CLOSED
            with ExitStack() as closing:  # an error of one close does not skip the others
                closing.callback(os.close, lock)
                closing.callback(os.close, self._claim_lock)
                for each in (self._log, self._known, self._index):
                    closing.callback(each.close)

    def submit(self, events: Sequence[Event], told: Told, *, any_time: Collection[str] = ()) -> None:
        """Claims slots in the turn of the group: a caller that does not wait must not wait for a claim either."""
        self._group.submit(AppendRequest(events, any_time=any_time), told)

    def _group_of(self, names: Names) -> GroupCommit:
        """Claims slots before the events join the group commit, so that a refusal affects only their own thread."""
        missing = {slot_of(entity) for entity in names()} - self._granted
        if missing:
            self.claim(missing)
        return self._group

    def _check_since(self, since: Position) -> None:
        """Receipts of other nodes, whose logs go on, are not checked."""

    def _read(self, log: str, start: int, stop: int) -> Iterator[tuple[range, pa.RecordBatch]]:
        self._logs = self._logs or self._all_logs()
        for first, batch in self._logs[log].batches(start, stop):
            yield range(first, first + batch.num_rows), batch

    def _places(self, ids: Sequence[str]) -> list[EventPlace | None]:
        found = self._known.places(ids, self._offset)
        return [None if place is None else EventPlace(place.log, place.behind - 1) for place in found]

    def _stored_of(self, requests: Sequence[AppendRequest]) -> list[Sequence[StoredEvent]]:
        """From the index, which knows trimmed events as well."""
        return [
            self._known.stored(request.entity or "", ids, self._offset) if ids else []
            for request in requests
            for ids in [[event.id for event in request.events]]
        ]

    def _stored(self, entity: str, there: Mapping[str, EventPlace]) -> list[StoredEvent]:
        return self._known.stored(entity, list(there), self._offset)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Exclude all other threads. JournalAway after `close`."""
        with self._appending, reaching(self._folder):
            if self._lock == CLOSED:
                raise JournalAway("This writer is closed", where=str(self._node), next_step="Open the node again")
            yield

    def _in_turn(self, act: Callable[[], Result], names: Names) -> Result:
        """Steps 1 and 2 of an append. Also checks the fence, so a fenced owner writes nothing at all."""
        with self._alone():
            self._held.check()
            self._claim({slot_of(entity) for entity in names()})
            self._logs = {}
            with self._log.turn() as end:
                if self._index.covers(self.log) != end.offset:
                    self._index.follow_log(self.log, node_logs(self._folder)[self.log])
                return act()

    def _store(self, batch: pa.RecordBatch, lasts: Mapping[str, int]) -> OneLog:
        """Steps 4 to 7; the log does 4 to 6."""
        first = self._offset
        self._index.flush_if_due()
        self._log.store(batch)
        self._index.note(self.log, first, batch)
        self._known.note(first, batch)
        return OneLog(self.log, first)

    def _lasts(self, entities: Sequence[str]) -> list[int]:
        found = self._index.last(entities)
        return [found[entity] for entity in entities]

    def _claim(self, slots: set[int]) -> None:
        """Claim slots, then read the events of their entities at other nodes."""
        missing = sorted(slots - self._granted)
        owners = {slot: self._slots.claim(slot, self.name, self._held.check) for slot in missing}
        if owners:
            self._index.follow()
            self._known.others_wrote()
        self._granted.update(slot for slot, owner in owners.items() if owner == self.name)
        for slot, owner in owners.items():
            if owner != self.name:
                raise self._elsewhere(slot, owner)

    def _elsewhere(self, slot: int, node: str) -> EntityElsewhere:
        return EntityElsewhere(
            f"The entities of slot {slot} are written by the node {node}",
            where=str(self._folder),
            next_step=f"Append them there. To move them, let {node} release the slot; "
            "if it is gone, take it over first",
        )

    def _started_index(self, name: str, number: int) -> Path:
        """The folder of an index, started from a copy of the last epoch's."""
        own = self._node / str(self.epoch) / (f"{name}-{number}" if number else name)
        older = [epoch for epoch in epochs(self._node) if epoch < self.epoch]
        for epoch in older[-1:]:
            copy_index(self._node / str(epoch) / name, own)
        return own

    def _all_logs(self) -> dict[str, NodeLog]:
        return complete_logs(self._folder, self._slots.nodes())


def _claimed(directory: Path) -> tuple[int, int]:
    """The first number that no other writer of this log has, and the lock on it: each writer has its own index."""
    for number in count():
        lock = try_lock(directory / f"writer-{number}")
        if lock is not None:
            return number, lock
    raise AssertionError("there is always a next number")
