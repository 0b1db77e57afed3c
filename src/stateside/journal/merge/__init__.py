"""Merge: one stream of all events out of the logs of all nodes.

    with Merger(folder, partitions=4) as merger:
        merger.merge()                                   # one pass; merger.run(stop) merges until stopped

    stream = MergedStream(folder)
    stream.wait_for(receipt.position, timeout_s=1)       # the position of a node's event in the stream

Files in the folder, beside the nodes:

    merged/born         the stream's id and number of partitions
    merged/P/           partition P: a journal with additional columns for the source of each event
    merged/index/       derived: each entity's last sequence in the stream
    merged/gaps.json    entities whose next event is missing
    merged/lock         locked by the merger

`merger` has the protocol and the events not yet merged, `partition` the columns and files, `gaps` the missing events,
`merge_stream` and `receipts` the reading side.
"""

from stateside.journal.merge.gaps import Gap
from stateside.journal.merge.merge_stream import MergedStream
from stateside.journal.merge.merger import Merger

__all__ = ["Gap", "MergedStream", "Merger"]
