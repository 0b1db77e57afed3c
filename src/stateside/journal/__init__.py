"""The journal: events, durable append, reading from a position.

    with JournalWriter(folder) as writer:
        receipt = writer.append([Event(id="c-1", entity="emma", type="call", time_us=..., payload={"seconds": 61})])

    journal = Journal(folder)
    journal.end().covers(receipt)            # True
    for event in journal.events(): ...

| module | has |
|---|---|
| `event`, `columns`, `payload`, `json_lines` | events, as record batches and JSON lines, and their checks |
| `segment`, `frames`, `frame_index`, `zone_maps` | the file format, and the files beside segments |
| `append`, `append_batch`, `group_commit`, `receipt` | an append, whatever the backend |
| `writer`, `lock`, `index`, `retention_base` | durable append on files, the writers' lock, indexes |
| `reader`, `stream`, `partitions`, `predicates` | reads, streams, stored partitions, filtered reads |
| `upcasters`, `memory`, `folder` | events of older schemas, a journal for tests, the journal of a folder |
| `queries`, `entities` | queries by entity, type and tag; entity states and commands |
| `nodes`, `merge`, `kafka`, `admin` | writers with a log each, their merged stream, journals on Kafka, maintenance |
"""

from stateside.journal.event import Event
from stateside.journal.memory import MemoryJournal
from stateside.journal.reader import Journal
from stateside.journal.receipt import Receipt
from stateside.journal.stream import FileStream, Stream
from stateside.journal.upcasters import Upcasters
from stateside.journal.writer import JournalWriter

__all__ = ["Event", "FileStream", "Journal", "JournalWriter", "MemoryJournal", "Receipt", "Stream", "Upcasters"]
