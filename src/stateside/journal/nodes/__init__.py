"""Nodes: several writers with a log each, for one stream of all events.

    with NodeWriter(folder, "hamburg") as node:
        receipt = node.append_to("emma", events)    # its position is like hamburg.1:3

Files in the folder, beside those of `merge`:

    nodes/NAME/epoch        the current owner: its epoch, which only ever grows, and its token
    nodes/NAME/E/           the log of epoch E, an ordinary journal, written by the owner of epoch E alone
    nodes/NAME/E/owner      locked by the owner of epoch E while its process lives
    nodes/NAME/E/sealed/end where a successor closed the log; nothing beyond this end counts
    nodes/NAME/E/index/     derived: each entity's last sequence, over all logs
    nodes/NAME/E/places/    derived: the place of the event with an id, over all logs
    slots/                  which node writes which entities

`node_writer` has the protocols of an append and of a takeover, `log` the fence, the logs and their seals, `ownership`
how entities move from node to node, `last_sequences` the source of sequences, `ids` the detection of repeated appends.
"""

from stateside.journal.nodes.node_writer import NodeWriter

__all__ = ["NodeWriter"]
