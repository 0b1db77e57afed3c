"""The writer of a journal on Kafka: the owner of partitions stores each append in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import JournalAway, StatesideError
from stateside.core.positions import Position
from stateside.core.wait import wait_until
from stateside.journal.append_batch import Appended, EventPlace
from stateside.journal.backends.kafka.admin import Admin, check_policy
from stateside.journal.backends.kafka.messages import values_of
from stateside.journal.backends.kafka.topic import Topic
from stateside.journal.backends.kafka.topic_index import Moved, OwnedEvents
from stateside.journal.backends.kafka.topic_reader import KafkaJournal
from stateside.journal.backends.kafka.transactions import (
    Delivered,
    Lanes,
    OnStep,
    Outgoing,
    ignore_step,
    in_doubt,
    own_all,
    own_some,
    wanted_partitions,
)
from stateside.journal.group_commit import GroupCommit
from stateside.journal.writer import LogWriter, Names, Result

MESSAGE_BYTES_MAX = 1_000_000  # upper limit, and the default for a topic that does not report its own
_BATCH_OVERHEAD_BYTES = 128  # of a Kafka record batch around the messages
_ATTEMPTS = 3
_LOOK_S = 0.001


class KafkaWriter(LogWriter):
    """The owner of a topic's partitions: of all of them, or of some. Threads may share the writer.

    A partition has one owner at a time: opening the journal takes its partitions over, at once, from the previous owner
    (`transactions` has the proof). An owner of some partitions knows the ids in its partitions only.

    How a process becomes able to append:

    1. The process opens its index (`topic_index`) in the folder, and reads the partitions from there on. EventsGone if
       retention deleted events missing from the index. The present owner continues meanwhile: no owner is fenced by a
       failed attempt, nor while this step takes long.
    2. The process becomes the owner of its partitions (`transactions`): from here on no other process can store events
       there.
    3. The process reads events that arrived meanwhile, up to the partitions' end, and so knows the last sequence of
       each entity, and the place of each event id.

    How an append is stored and acknowledged:

    1. The events are checked. An entity has its partition (`topic.partition_of`); EntityElsewhere if this owner does
       not own the partition.
    2. Ids stored already: the first receipt. Else each event gets the next sequence of its entity.
    3. A transaction begins, and the messages (`messages`) are sent. No reader sees the messages yet.
    4. All are acknowledged by all brokers required (acks=all), each with its offset. If the offsets do not directly
       follow the known ones, a process that is no owner has sent to the topic, or the topic was recreated: the
       transaction is aborted, new messages are read, and the append continues with step 2.
    5. The transaction is committed: the whole append counts from now on, in one atomic step. Kafka refuses the commit
       if there is another owner: JournalFenced.
    6. The owner waits until the partitions' ends, as seen by readers of committed events, are beyond the events.
    7. The index adds the events, in memory, and the receipt is returned: the position just after the events, in their
       partitions.

    A crash before step 5 leaves an open transaction, which the next owner's step 1 (`transactions`) aborts. A crash
    after step 5 leaves events stored without a receipt: the same append again, at any owner, returns the first receipt.

    Why sequences have no gaps and no duplicates: an owner's writes are settled before its successor reads
    (`transactions`, step 3), and the successor knows all of them before it numbers any event. No other process stores
    events in between.

    An append of several entities is one transaction, so all or none, for the owner of all partitions. An owner of some
    partitions stores appends within one partition each, and refuses others (EventRefused).

    After an error that leaves open whether an append is stored, this writer accepts nothing more until it is opened
    again. The brokers decide whether acknowledged events survive a power failure: they hold them in memory, on as many
    machines as the topic has replicas in sync (`min.insync.replicas`), and write them to disk later.
    """

    def __init__(
        self,
        topic: Topic,
        folder: Path,
        *,
        partitions: Sequence[int] | None = None,
        clock: Clock | None = None,
        accept_gone: bool = False,
        pass_over: Iterable[str] = (),
        on_step: OnStep = ignore_step,
    ) -> None:
        """`folder`: for the index, which may be deleted. `partitions`: those to own; default all.

        `accept_gone`: if the index lacks events that retention has deleted, continue without them. Entities without any
        remaining event then start with sequence 1 again, and the ids of deleted events count as new. `pass_over`:
        messages that are no events, as for `KafkaJournal`.
        """
        super().__init__(clock or SystemClock())
        self.topic, self._on_step = topic, on_step
        self._admin, self._journal = Admin(topic), KafkaJournal(topic, pass_over=pass_over)
        self._described = self._admin.described()
        settings = self._admin.settings()
        check_policy(topic, settings)
        self.partitions = wanted_partitions(topic, partitions, self._described.partitions)
        self._lanes = Lanes(topic, self._described.partitions, [])
        self._known = OwnedEvents(self._journal, self._described, self.partitions, folder, accept_gone)
        try:
            self._known.catch_up(self.partitions)
            self._known.write()
            self._own(partitions is None, int(settings.get("max.message.bytes", MESSAGE_BYTES_MAX)))
            self._known.catch_up(self.partitions)
        except BaseException:
            self.close()
            raise

    @property
    def journal_id(self) -> str:
        """The topic's id."""
        return self._described.id

    @property
    def end(self) -> Position:
        """The position just after the last known event of each of this owner's partitions."""
        return self._known.end(self.partitions)

    def close(self) -> None:
        """Release the partitions. Acknowledged events are stored already."""
        with self._appending:
            self._lanes.end(JournalAway("This writer is closed", where=self.topic.where, next_step="Open another one"))
            self._journal.close()
            self._known.close()

    def _own(self, of_all: bool, message_bytes_max: int) -> None:
        size = min(MESSAGE_BYTES_MAX, max(1_000, message_bytes_max - _BATCH_OVERHEAD_BYTES))
        if of_all:
            lanes = [own_all(self.topic, self._described.partitions, size)]
        else:
            lanes = own_some(self.topic, self.partitions, size)
        self._lanes = Lanes(self.topic, self._described.partitions, lanes)
        self._groups = {lane: GroupCommit(self._append_together) for lane in lanes}

    def _group_of(self, names: Names) -> GroupCommit:
        return self._groups[self._lanes.of(names)]

    def _check_since(self, since: Position) -> None:
        for number in self.partitions:
            at = since[str(number)]
            for _ in self._journal.located(str(number), at, at):  # PositionInvalid beyond the end
                pass

    def _in_turn(self, act: Callable[[], Result], names: Names) -> Result:
        """Act in one turn, and repeat if the partitions turn out to have more messages than known.

        A lane that accepts nothing more gives no answers either: knowledge of its partitions may be stale.
        """
        lane = self._lanes.of(names)
        with self._appending:
            lane.check_open()
            for _ in range(_ATTEMPTS):
                try:
                    return act()
                except Moved as moved:
                    with self._ending():
                        self._await_visible(moved.delivered, "An append was taken back, but readers still wait for it")
                        self._known.catch_up(list(moved.delivered))
        raise JournalAway(
            "Others send to this topic all the time, who are not its owner",
            where=self.topic.where,
            next_step="Nothing was stored. Have them write to another topic, or through the owner",
        )

    def _store(self, batch: pa.RecordBatch, lasts: Mapping[str, int]) -> TopicRows:
        """Steps 3 to 7, in a turn."""
        entities = batch.column("entity").to_pylist()
        lane = self._lanes.of(lambda: entities)
        partitions = [self._known.partition_of(entity) for entity in entities]
        self._known.make_room()
        delivered = lane.store(self._messages(batch, partitions), self._known.check, self._on_step)
        with self._ending():
            self._on_step(6)
            ends = self._await_visible(delivered, "The last append is stored, but readers do not see it yet")
            self._on_step(7)
            return TopicRows(self._known.note(batch, partitions, delivered, ends))

    def _read(self, log: str, start: int, stop: int) -> Iterator[tuple[Sequence[int], pa.RecordBatch]]:
        for offsets, batch in self._journal.located(log, start, stop):
            yield offsets.tolist(), batch

    def _places(self, ids: Sequence[str]) -> list[EventPlace | None]:
        return self._known.places(ids)

    def _lasts(self, entities: Sequence[str]) -> list[int]:
        return self._known.lasts(entities)

    def _messages(self, batch: pa.RecordBatch, partitions: Sequence[int]) -> list[Outgoing]:
        times_ms = (us // 1_000 for us in batch.column("appended").cast(pa.int64()).to_pylist())
        keys = (entity.encode() for entity in batch.column("entity").to_pylist())
        parts = zip(partitions, keys, values_of(batch), times_ms, strict=True)
        return [Outgoing(*part) for part in parts]

    def _await_visible(self, delivered: Delivered, what: str) -> Mapping[int, int]:
        """Step 6: Kafka moves the ends a moment after the commit, or the abort. Returns the new ends."""

        def new_ends() -> Mapping[int, int] | None:
            ends = self._admin.ends(delivered)
            return ends if all(ends[number] > offsets[-1] for number, offsets in delivered.items()) else None

        found = wait_until(new_ends, self.topic.answer_s_max, _LOOK_S)
        if found is not None:
            return found
        raise JournalAway(
            what,
            where=self.topic.where,
            next_step="See that all brokers run, and who else has a transaction open in this topic. "
            "Open the journal again; the same append then gives the receipt",
        )

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """After an error in the block this writer accepts nothing more: the topic's content is unknown."""
        try:
            yield
        except StatesideError as error:
            self._lanes.end(error)
            raise
        except BaseException as error:
            self._lanes.end(in_doubt(type(error).__name__, self.topic))
            raise


class TopicRows:
    """Rows stored in their entities' partitions."""

    def __init__(self, places: Sequence[EventPlace]) -> None:
        self._places = places

    def appended(self, low: int, high: int) -> Appended:
        ends: dict[str, int] = {}
        for partition, offset in self._places[low:high]:
            ends[partition] = max(offset + 1, ends.get(partition, 0))
        return Appended(Position.of(ends), lambda number: self._places[low + number])
