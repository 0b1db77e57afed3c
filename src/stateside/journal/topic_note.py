"""The note in a folder that says: its journal is a topic on Kafka (`kafka.placed`). Who writes to files stops there."""

from __future__ import annotations

from pathlib import Path

from stateside.core.errors import SettingInvalid

NAME = "topic.json"


def check_not_read(folder: Path) -> None:
    """SettingInvalid if the folder's journal is a topic, for who reads files: there would never be any event."""
    next_step = (
        "Billing on Kafka is stateside.billing.pipeline.on_kafka:app; one of your own reads it with "
        "source=stateside.sources.kafka_journal(…)"
    )
    _refuse_topic(folder, "this application reads files", next_step)


def check_none(folder: Path) -> None:
    """SettingInvalid if the folder's journal is a topic: events on files beside it would be read by nobody."""
    next_step = (
        "Append with `stateside append --dir`, with open_writer (stateside.journal.folder), or POST events to the "
        "server: these go to the topic. For a journal on files use another folder"
    )
    _refuse_topic(folder, "this writes to files", next_step)


def _refuse_topic(folder: Path, what: str, next_step: str) -> None:
    note = folder / NAME
    if note.exists():
        raise SettingInvalid(
            f"The journal of this folder is a topic on Kafka, and {what}", where=str(note), next_step=next_step
        )
