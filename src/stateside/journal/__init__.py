"""The journal: events, durable append, reading from a position.

    with JournalWriter(folder) as writer:
        receipt = writer.append([Event(id="c-1", entity="emma", type="call", time_us=..., payload={"seconds": 61})])

    journal = Journal(folder)
    journal.end().covers(receipt)            # True
    for event in journal.events(): ...

`event` has the event and what is refused, `columns` events as record batches, `segment` the file format, `appending`
what an append does, `writer` how it becomes durable, `turns` how several writers go about it, `recovery` what becomes
of a crash, `reader` the reads, `stream` what others follow, `queries` what events can be asked for, `entities` states
and commands, `nodes` writers with a log each, `merge` one stream of these, `upkeep` how a journal is looked after,
`upcasting` events of older schemas, `lines` events as JSON lines, `memory` a journal for tests.
"""

from stateside.journal.event import Event
from stateside.journal.memory import MemoryJournal
from stateside.journal.reader import Journal
from stateside.journal.receipt import Receipt
from stateside.journal.stream import FileStream, Stream
from stateside.journal.upcasters import Upcasters
from stateside.journal.writer import JournalWriter

__all__ = ["Event", "FileStream", "Journal", "JournalWriter", "MemoryJournal", "Receipt", "Stream", "Upcasters"]
