"""Upkeep of a journal on files: what it holds, whether all of it is right, and how to take it elsewhere.

`place` is where a journal and what belongs to it lie, `statistics` tells how large it is, `selection` which events are
meant, `exporting` writes them out. `verification` reads all of it and changes nothing: `log_check` has the events'
order, `index_check` the indexes of ids and sequences, `view_check` the views of queries.
"""

from stateside.journal.upkeep.exporting import Exported, export, export_to
from stateside.journal.upkeep.findings import Finding
from stateside.journal.upkeep.place import Place
from stateside.journal.upkeep.selection import Selection
from stateside.journal.upkeep.statistics import Statistics, statistics, tags
from stateside.journal.upkeep.verification import Verdict, verify

__all__ = [
    "Exported",
    "Finding",
    "Place",
    "Selection",
    "Statistics",
    "Verdict",
    "export",
    "export_to",
    "statistics",
    "tags",
    "verify",
]
