"""Administration of a journal on files: statistics, verification, export and retention.

`journal_files` names the files of a journal and guards reads against concurrent retention, `statistics` reports its
size, `export` selects events and writes them out. `verification` reads everything and changes nothing, also for streams
stored by others, as Kafka does: `index_check` checks the order of events, the indexes of ids and sequences and the zone
maps of segments, `view_check` the views of queries, and `findings` has the results. `retention` drops segments that no
reader needs, knows the readers, and trims merged events from nodes' logs. `node_logs` has the statistics and the
verification of a journal written by nodes.
"""

from stateside.journal.admin.export import Exported, Selection, export, export_to
from stateside.journal.admin.findings import JournalFault, VerificationResult
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
    "JournalFault",
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
