"""Nodes: several writers with a log each, and one stream merged from their logs.

    with NodeWriter(folder, "hamburg") as node:
        receipt = node.append_to("emma", events)         # its position is like hamburg.1:3

    with Merger(folder, partitions=4) as merger:
        merger.merge()                                   # one pass; merger.run(stop) merges until stopped

    MergedJournal(folder).wait_for(receipt.position, timeout_s=1)   # the position of a node's event in the stream

Files in the folder:

    nodes/NAME/epoch        the current owner: its epoch, which only ever grows, and its token
    nodes/NAME/E/           the log of epoch E, an ordinary journal, written by the owner of epoch E alone
    nodes/NAME/E/owner      locked by the owner of epoch E while its process lives
    nodes/NAME/E/sealed/end where a successor closed the log; nothing beyond this end counts
    nodes/NAME/E/index/     derived: each entity's last sequence, over all logs
    nodes/NAME/E/places/    derived: the place of the event with an id, over all logs
    nodes/NAME/E/writer-N   of a node's several owners (`shared`), locked by the one with `index-N` and `places-N`
    slots/                  which node writes which entities
    merged/born             the stream's id and number of partitions
    merged/P/               partition P: a journal with additional columns for the source of each event
    merged/index/           derived: each entity's last sequence in the stream
    merged/gaps.json        entities whose next event is missing
    merged/lock             locked by the merger

`node_writer` has the protocols of an append and of a takeover, `log` the fence, the logs and their seals, `ownership`
how entities move from node to node, `node_index` the source of sequences and the detection of repeated appends.
`merger` has the protocol of the merge, `partition` the columns and files, with the gaps, `node_journal` and `receipts`
the reading side.
"""

from stateside.journal.backends.nodes.merger import Merger
from stateside.journal.backends.nodes.node_journal import MergedJournal
from stateside.journal.backends.nodes.node_writer import NodeWriter
from stateside.journal.backends.nodes.partition import Gap

__all__ = ["Gap", "MergedJournal", "Merger", "NodeWriter"]
