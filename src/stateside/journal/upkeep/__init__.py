"""Upkeep of a journal on files: what it holds, whether all of it is right, and how to take it elsewhere.

`place` is where a journal and what belongs to it lie, `statistics` tells how large it is, `selection` which events are
meant, `exporting` writes them out. `verification` reads all of it and changes nothing: `log_check` has the events'
order, `index_check` the indexes of ids and sequences, `view_check` the views of queries, `summary_check` the summaries
of segments. `retention` drops segments that nobody needs any more, `readers` knows who does.
"""

from stateside.journal.upkeep.exporting import Exported, export, export_to
from stateside.journal.upkeep.findings import Finding
from stateside.journal.upkeep.place import Place
from stateside.journal.upkeep.readers import Reader, register, unregister
from stateside.journal.upkeep.retention import Dropped, drop, offset_before
from stateside.journal.upkeep.selection import Selection
from stateside.journal.upkeep.statistics import Statistics, statistics, tags
from stateside.journal.upkeep.verification import Verdict, verify

__all__ = [
    "Dropped",
    "Exported",
    "Finding",
    "Place",
    "Reader",
    "Selection",
    "Statistics",
    "Verdict",
    "drop",
    "export",
    "export_to",
    "offset_before",
    "register",
    "statistics",
    "tags",
    "unregister",
    "verify",
]
