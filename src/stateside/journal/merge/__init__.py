"""Merge: one stream of all events out of the logs of all nodes.

    with Merger(folder, partitions=4) as merger:
        merger.merge()                                   # or merger.run(stop), for as long as it lasts

    stream = MergedStream(folder)
    stream.wait_for(receipt.position, timeout_s=1)       # where a node's event stands in the stream

In the folder, beside the nodes:

    merged/born         which stream this is, and how many partitions it has
    merged/P/           partition P: a journal with some columns more, which say where each event comes from
    merged/index/       derived: each entity's last sequence in the stream
    merged/gaps.json    which entities wait for an event that is missing
    merged/lock         locked by the merger

`merger` has the protocol, `columns` what a merged event has, `partition` the files, `waiting` the events that cannot be
merged yet, `gaps` what they wait for, `output` what is on its way, `stream`, `receipts` and `tail` the reading.
"""

from stateside.journal.merge.gaps import Gap
from stateside.journal.merge.merge_stream import MergedStream
from stateside.journal.merge.merger import Merger

__all__ = ["Gap", "MergedStream", "Merger"]
