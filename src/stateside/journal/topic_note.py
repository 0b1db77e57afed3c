"""The note `topic.json`, which marks a folder whose journal is a Kafka topic (`backends.kafka.topic_folder`)."""

from __future__ import annotations

from pathlib import Path

from stateside.core.errors import SettingInvalid

NAME = "topic.json"


def check_not_read(folder: Path) -> None:
    """SettingInvalid for a reader of files if the folder's journal is a topic: no event would ever arrive."""
    next_step = (
        "Billing on Kafka is stateside.billing.pipeline.on_kafka:app; one of your own reads it with "
        "source=stateside.sources.kafka_journal(…)"
    )
    _refuse_topic(folder, "this application reads files", next_step)


def check_none(folder: Path) -> None:
    """SettingInvalid for a writer of files if the folder's journal is a topic: no reader would see the events."""
    next_step = (
        "Append with `stateside append --dir`, with stateside.open_journal(folder).writer(), or POST events to the "
        "server: these go to the topic. For a journal on files use another folder"
    )
    _refuse_topic(folder, "this writes to files", next_step)


def _refuse_topic(folder: Path, what: str, next_step: str) -> None:
    note = folder / NAME
    if note.exists():
        raise SettingInvalid(
            f"The journal of this folder is a topic on Kafka, and {what}", where=str(note), next_step=next_step
        )
