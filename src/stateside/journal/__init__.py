"""The journal: events, durable append, reading from a position.

    with JournalWriter(folder) as writer:
        receipt = writer.append([Event(id="c-1", entity="emma", type="call", time_us=..., payload={"seconds": 61})])

    journal = Journal(folder)
    journal.end().covers(receipt)            # True
    for event in journal.events(): ...

`event` has the event and what is refused, `segment` the file format, `writer` the append protocol, `turns`
how several writers go about it, `recovery` what becomes of a crash, `reader` the reads, `lines` events as JSON lines.
"""

from stateside.journal.event import Event
from stateside.journal.reader import Journal
from stateside.journal.writer import JournalWriter

__all__ = ["Event", "Journal", "JournalWriter"]
