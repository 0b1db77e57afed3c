"""The journal of a folder: on files in the folder itself, or on Kafka (`kafka.topic_folder.placed`)."""

from __future__ import annotations

from pathlib import Path

from stateside.core.clock import Clock
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.file_writer import JournalWriter
from stateside.journal.backends.kafka.shared_writer import PlacedWriter
from stateside.journal.backends.kafka.topic_folder import TopicLog, placed


def open_journal(folder: Path) -> FileLog:
    """The reader of this folder's journal."""
    topic = placed(folder)
    return FileLog(folder) if topic is None else TopicLog(folder, topic)


def open_writer(folder: Path, *, clock: Clock | None = None) -> JournalWriter | PlacedWriter:
    """A writer of this folder's journal, shared with other processes. Receipts are positions as in stamps."""
    topic = placed(folder)
    return JournalWriter(folder, clock=clock) if topic is None else PlacedWriter(folder, topic, clock=clock)
