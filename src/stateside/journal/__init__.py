"""The journal: events, durable append, reading from a position.

    journal = open_journal(folder)
    with journal.writer() as writer:
        receipt = writer.append([Event(id="c-1", entity="emma", type="call", time_us=..., payload={"seconds": 61})])
    journal.end().covers(receipt)            # True
    for event in journal.events(): ...

| module | has |
|---|---|
| `event`, `columns`, `payload`, `json_lines` | events, as record batches and JSON lines, and their checks |
| `writer`, `append_batch`, `group_commit`, `receipt`, `index` | an append, whatever the backend |
| `backends` | what a journal is stored on: memory, files, nodes with a merged stream, Kafka |
| `contract`, `location` | what every journal promises; which one a folder or an address has |
| `predicates`, `upcasters` | filtered reads, events of older schemas |
| `queries`, `entities` | queries by entity, type and tag; entity states and commands |
| `admin` | maintenance |
"""

from typing import TYPE_CHECKING

from stateside.core.extras import lazy

if TYPE_CHECKING:
    from stateside.journal.backends.files.file_journal import FileJournal
    from stateside.journal.backends.files.file_log import FileLog
    from stateside.journal.backends.files.file_writer import JournalWriter
    from stateside.journal.backends.memory import MemoryJournal
    from stateside.journal.contract import PARTITION, DurableEnd, Journal, Log, Writer
    from stateside.journal.event import NAME_CHARS_MAX, Event
    from stateside.journal.index import Index, hash_of, keeping
    from stateside.journal.location import open_journal
    from stateside.journal.payload import payload_columns
    from stateside.journal.predicates import Conditions, NumberRange, stretches
    from stateside.journal.receipt import Receipt
    from stateside.journal.upcasters import Upcasters
else:
    __getattr__ = lazy(
        __name__,
        {
            "stateside.journal.backends.files.file_journal": ["FileJournal"],
            "stateside.journal.backends.files.file_log": ["FileLog"],
            "stateside.journal.backends.files.file_writer": ["JournalWriter"],
            "stateside.journal.backends.memory": ["MemoryJournal"],
            "stateside.journal.contract": ["PARTITION", "DurableEnd", "Journal", "Log", "Writer"],
            "stateside.journal.event": ["NAME_CHARS_MAX", "Event"],
            "stateside.journal.index": ["Index", "hash_of", "keeping"],
            "stateside.journal.location": ["open_journal"],
            "stateside.journal.payload": ["payload_columns"],
            "stateside.journal.predicates": ["Conditions", "NumberRange", "stretches"],
            "stateside.journal.receipt": ["Receipt"],
            "stateside.journal.upcasters": ["Upcasters"],
        },
    )

__all__ = [
    "NAME_CHARS_MAX",
    "PARTITION",
    "Conditions",
    "DurableEnd",
    "Event",
    "FileJournal",
    "FileLog",
    "Index",
    "Journal",
    "JournalWriter",
    "Log",
    "MemoryJournal",
    "NumberRange",
    "Receipt",
    "Upcasters",
    "Writer",
    "hash_of",
    "keeping",
    "open_journal",
    "payload_columns",
    "stretches",
]
