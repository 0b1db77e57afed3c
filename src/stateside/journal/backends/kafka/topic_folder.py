"""A folder whose journal is a Kafka topic: a file names the topic, and the folder's readers and writers use the topic.

    JOURNAL/topic.json      {"address": "kafka://localhost:9092/billing"}
    JOURNAL/index/, lock    of the writers

For applications whose events have one order: such a journal has one partition.

A topic has one owner at a time (`transactions`), and a new owner fences the one before. So that a server, the clockwork
and commands can all append, they take turns by a lock in the folder, as writers of a journal on files do (`lock`).

1. The writer takes its turn. A writer that also had the previous turn is still the owner, and continues with step 3.
2. Else the writer opens a new `KafkaWriter` and becomes the owner. The writer of the previous turn is fenced, and does
   the same in its next turn. A change of owner costs some 100 ms, and no events.
3. The writer appends, and releases the turn.

The lock prevents contention; Kafka's fence alone guarantees safety. Where the lock does not reach, as on other machines
whose file system has no such locks, a writer fenced in its turn becomes the owner again and repeats the append, which
is stored once, as ids are compared. An append that compares none raises JournalFenced instead.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from stateside.core.clock import Clock
from stateside.core.errors import (
    EventRefused,
    JournalAway,
    JournalFenced,
    PositionInvalid,
    SequenceConflict,
    SettingInvalid,
    StatesideError,
)
from stateside.core.positions import Position
from stateside.core.secrets import plain_secret
from stateside.core.storage import write_atomically
from stateside.journal.append_batch import Answer, Answers, Appended, AppendRequest
from stateside.journal.backends.files import segment
from stateside.journal.backends.files.file_writer import has_nodes
from stateside.journal.backends.files.lock import Turns
from stateside.journal.backends.files.segment import PARTITION
from stateside.journal.backends.kafka.topic import Topic, topic_at
from stateside.journal.backends.kafka.topic_owner import KafkaWriter
from stateside.journal.backends.kafka.topic_reader import KafkaJournal
from stateside.journal.receipt import Receipt
from stateside.journal.topic_note import NAME as NAME
from stateside.journal.writer import GroupedWriter, Result

LOCK = "lock"
ATTEMPTS_MAX = 5
_OF_THE_CALLER = (EventRefused, SequenceConflict, PositionInvalid)
_PAUSE_S_MAX = 0.5  # pause after being fenced; random, so that two writers do not fence each other for ever

log = logging.getLogger(__name__)


class PlacedWriter(GroupedWriter):
    """A writer of a folder's topic, which has one partition. Threads may share the writer.

    All positions, given and returned, include the topic's name, as in stamps: `billing-0:12`. The writer becomes owner
    at its first append: opening disturbs no other process. SettingInvalid if the topic has several partitions,
    JournalAway if there is no such topic, or not the one of the first append.
    """

    def __init__(self, folder: Path, topic: Topic, *, clock: Clock | None = None, known: str | None = None) -> None:
        """`known`: the topic's id, if an earlier writer had it."""
        super().__init__()
        self.topic, self._folder, self._clock = topic, folder, clock
        self._log = KafkaJournal(topic).log()
        self._log.end()  # refuses a topic that cannot be the journal
        self._turns = Turns(folder / LOCK)
        self._owner: KafkaWriter | None = None
        self._id = known

    @property
    def end(self) -> Position:
        """The position after the last event of any writer, known to the owner only."""
        return self._in_stamps(self._as_owner(lambda owner: owner.end))

    def append_batch(self, batch: pa.RecordBatch) -> Position:
        return self._in_stamps(self._as_owner(lambda owner: owner.append_batch(batch), repeatable=False))

    def receipt_of(self, entity: str, id_: str) -> Receipt | None:
        receipt = self._as_owner(lambda owner: owner.receipt_of(entity, id_))
        return None if receipt is None else replace(receipt, position=self._in_stamps(receipt.position))

    def close(self) -> None:
        """Release the topic. Acknowledged events are stored already."""
        with self._appending:
            self._let_go()
            self._turns.close()

    def _append_together(self, requests: Sequence[AppendRequest]) -> Answers:
        repeatable = all(request.compare_ids for request in requests)
        answers = self._as_owner(lambda owner: owner._append_together(requests), repeatable=repeatable)
        return [self._shown(answer) for answer in answers]

    def _shown(self, answer: Answer | None) -> Answer | None:
        if isinstance(answer, Appended):
            place = answer.place
            named = lambda number: place(number)._replace(log=f"{self.topic.name}-{place(number).log}")  # noqa: E731
            return replace(answer, position=self._in_stamps(answer.position), place=named)
        if isinstance(answer, Receipt):
            return replace(answer, position=self._in_stamps(answer.position))
        return answer

    def _check_since(self, since: Position) -> None:
        plain = Position.of({PARTITION: since.one()})
        self._as_owner(lambda owner: owner._check_since(plain))

    def _as_owner(self, act: Callable[[KafkaWriter], Result], *, repeatable: bool = True) -> Result:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return self._act(act)
            except JournalFenced:
                if not repeatable or attempt == ATTEMPTS_MAX:
                    raise
            time.sleep(random.uniform(0, _PAUSE_S_MAX))
        raise AssertionError("the last attempt returns or raises")

    def _act(self, act: Callable[[KafkaWriter], Result]) -> Result:
        """Steps 1 to 3. After an error not caused by the caller the owner may be unusable: the next turn reopens."""
        with self._appending, self._turns.take() as own:
            try:
                if not own:
                    self._let_go()
                self._owner = self._owner or self._owning()
                return act(self._owner)
            except _OF_THE_CALLER:
                raise
            except StatesideError:
                self._let_go()
                raise

    def _owning(self) -> KafkaWriter:
        """Step 2."""
        self._log.end()  # partitions may have been added
        owner = KafkaWriter(self.topic, self._folder / INDEX, clock=self._clock)
        if self._id not in (None, owner.journal_id):
            owner.close()
            raise JournalAway(
                f"The topic is another one than the journal was: {owner.journal_id}, and not {self._id}",
                where=self.topic.where,
                next_step="Nothing was stored. Bring the journal's topic back; for a new one use a new folder",
            )
        self._id = owner.journal_id
        return owner

    def _let_go(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            _close(owner)

    def _in_stamps(self, position: Position) -> Position:
        return self.topic.in_stamps(position)


def _close(owner: KafkaWriter) -> None:
    """Close the owner; a failure concerns only its index, which may be deleted, and no event."""
    try:
        owner.close()
    except StatesideError as error:
        log.info("the index of a writer was not written, and will be read again: %s", error)


INDEX = "index"  # the writers' indexes of the topic, beside the note; may be deleted


def place(folder: Path, address: str) -> Topic:
    """Set the address of the folder's journal; the same topic may have moved to another address.

    SettingInvalid if the address is invalid or contains a secret, or the folder has a journal of its own.
    """
    topic = placeable(folder, address)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / NAME, json.dumps({"address": address}).encode())
    return topic


def placeable(folder: Path, address: str) -> Topic:
    """The topic at this address, as the folder's future journal; SettingInvalid as for `place`."""
    topic = topic_at(address)
    if segment.segment_offsets(folder) or has_nodes(folder):
        raise SettingInvalid(
            "This folder has a journal of its own already", where=str(folder), next_step="Use a new folder"
        )
    if plain := plain_secret(topic.options):
        raise SettingInvalid(
            f"The option {plain} would be written down, for everybody who may read that file",
            where=str(folder / NAME),
            next_step="Put it into an environment variable of all who use the folder, and write env:NAME",
        )
    return topic


def placed(folder: Path) -> Topic | None:
    """The topic that is the folder's journal; None for a journal on files. SettingInvalid if the file is damaged."""
    address = address_in(folder)
    return None if address is None else topic_at(address)


def address_in(folder: Path) -> str | None:
    """The address of the topic that is the folder's journal; None for a journal on files."""
    try:
        return str(json.loads((folder / NAME).read_bytes())["address"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, LookupError, TypeError) as error:
        raise SettingInvalid(
            f"It cannot be read which topic is the journal: {error!r}",
            where=str(folder / NAME),
            next_step='Write {"address": "kafka://HOST:PORT/TOPIC"} there',
        ) from error


def topic_of(folder: Path) -> Topic:
    """The topic that is the folder's journal; JournalAway for a journal on files."""
    topic = placed(folder)
    if topic is None:
        raise JournalAway(
            "The journal of this folder is no topic on Kafka",
            where=str(folder / NAME),
            next_step='Write {"address": "kafka://HOST:PORT/TOPIC"} there, or run the application on files',
        )
    return topic
