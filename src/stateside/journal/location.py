"""Which journal a folder or an address has: the only place that knows.

a folder with        has its journal
topic.json           on Kafka, at the address in that file; its writers take turns
nodes/ or merged/    merged from the logs of its nodes
segments, or none    on files, in the folder itself

an address           kafka://localhost:9092/orders: a topic; its writer owns it
"""

from __future__ import annotations

from pathlib import Path

from stateside.core.errors import SettingInvalid
from stateside.journal.backends.files.file_journal import FileJournal
from stateside.journal.backends.files.file_writer import has_nodes
from stateside.journal.backends.files.segment import segment_offsets
from stateside.journal.backends.kafka.topic import topic_at
from stateside.journal.backends.kafka.topic_folder import placed
from stateside.journal.backends.kafka.topic_reader import KafkaJournal
from stateside.journal.backends.nodes.node_journal import MergedJournal
from stateside.journal.contract import Journal
from stateside.journal.topic_note import NAME
from stateside.journal.upcasters import Upcasters


def open_journal(
    place: Path | str,
    *,
    node: str | None = None,
    index: Path | None = None,
    upcasters: Upcasters | None = None,
) -> Journal:
    """The journal of a folder, or at an address like kafka://localhost:9092/orders.

        journal = open_journal(Path("shop/journal"))
        with journal.writer() as writer:
            receipt = writer.append([Event("c-1", "emma", "call", 0, {"seconds": 61})])
        assert [event.entity for event in journal.events()] == ["emma"]

    Opening a journal reads nothing and creates nothing; a journal without a writer so far is empty. `node`: append to
    the log of this node. `index`: the folder for the index of a topic's writer. `upcasters` convert events to their
    type's newest schema. SettingInvalid if the folder has two journals, or the address is invalid.
    """
    if isinstance(place, str) and "://" in place:
        return KafkaJournal(topic_at(place), index, upcasters=upcasters)
    folder = Path(place)
    if node is not None or is_merged(folder):
        return MergedJournal(folder, node, upcasters=upcasters)
    topic = placed(folder)
    if topic is not None:
        return KafkaJournal(topic, folder, shared=True, upcasters=upcasters)
    return FileJournal(folder, upcasters=upcasters)


def is_merged(folder: Path) -> bool:
    """Whether nodes write the journal of this folder; SettingInvalid if the folder has a log or a topic as well."""
    if not has_nodes(folder):
        return False
    own = "log of its own" if segment_offsets(folder) else "topic on Kafka" if (folder / NAME).exists() else None
    if own is not None:
        raise SettingInvalid(
            f"This folder has a {own}, and nodes beside it, whose stream does not have the events there",
            where=str(folder),
            next_step="Keep them in two folders, and name the one that is meant",
        )
    return True
