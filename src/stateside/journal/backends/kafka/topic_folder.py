"""A folder whose journal is a Kafka topic: a file names the topic, and the folder's readers and writers use the topic.

    JOURNAL/topic.json      {"address": "kafka://localhost:9092/billing"}
    JOURNAL/index/, lock    of the writers (`folder_writer`)

For applications whose events have one order: such a journal has one partition.
"""

from __future__ import annotations

import json
from pathlib import Path

from stateside.core.errors import JournalAway, SettingInvalid
from stateside.core.secrets import plain_secret
from stateside.core.storage import write_atomically
from stateside.journal.backends.files import segment
from stateside.journal.backends.files.file_writer import has_nodes
from stateside.journal.backends.kafka.topic import Topic, topic_at
from stateside.journal.topic_note import NAME as NAME

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
