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
    from stateside.journal.contract import Journal, Log, Writer
    from stateside.journal.event import Event
    from stateside.journal.location import open_journal
    from stateside.journal.receipt import Receipt
    from stateside.journal.upcasters import Upcasters
else:  # clients append events, without the packages that a journal on disk needs
    __getattr__ = lazy(
        __name__,
        {
            "Event": "stateside.journal.event",
            "FileJournal": "stateside.journal.backends.files.file_journal",
            "FileLog": "stateside.journal.backends.files.file_log",
            "Journal": "stateside.journal.contract",
            "JournalWriter": "stateside.journal.backends.files.file_writer",
            "Log": "stateside.journal.contract",
            "MemoryJournal": "stateside.journal.backends.memory",
            "Receipt": "stateside.journal.receipt",
            "Upcasters": "stateside.journal.upcasters",
            "Writer": "stateside.journal.contract",
            "open_journal": "stateside.journal.location",
        },
    )

__all__ = [
    "Event",
    "FileJournal",
    "FileLog",
    "Journal",
    "JournalWriter",
    "Log",
    "MemoryJournal",
    "Receipt",
    "Upcasters",
    "Writer",
    "open_journal",
]
