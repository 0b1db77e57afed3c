"""Upkeep of a journal on files: what it holds, whether all of it is right, and how to take it elsewhere.

`place` is where a journal and what belongs to it lie, `statistics` tells how large it is, `selection` which events are
meant, `exporting` writes them out. `verification` reads all of it and changes nothing: `log_check` has the events'
order, `index_check` the indexes of ids and sequences, `view_check` the views of queries, `summary_check` the summaries
of segments. `retention` drops segments that nobody needs any more, `readers` knows who does, and `undisturbed` is how
others read meanwhile. Of a journal that nodes write, `node_statistics` tells how far the logs are merged,
`node_verification` compares them with the stream, and `trimming` drops from them what is merged. `stream_verification`
is for journals that others store, as Kafka does.
"""

from stateside.journal.admin.export import Exported, Selection, export, export_to
from stateside.journal.admin.findings import Finding, VerificationResult
from stateside.journal.admin.journal_files import JournalFiles
from stateside.journal.admin.node_logs import NodeStatistics, node_statistics, verify
from stateside.journal.admin.retention import (
    Dropped,
    Reader,
    drop,
    drop_all,
    offset_before,
    position_before,
    register,
    trim,
    unregister,
)
from stateside.journal.admin.statistics import Statistics, statistics, tags
from stateside.journal.admin.verification import verify_stream

__all__ = [
    "Dropped",
    "Exported",
    "Finding",
    "JournalFiles",
    "NodeStatistics",
    "Reader",
    "Selection",
    "Statistics",
    "VerificationResult",
    "drop",
    "drop_all",
    "export",
    "export_to",
    "node_statistics",
    "offset_before",
    "position_before",
    "register",
    "statistics",
    "tags",
    "trim",
    "unregister",
    "verify",
    "verify_stream",
]
