"""Nodes: several writers with a log each, for one stream of all events.

    with NodeWriter(folder, "hamburg") as node:
        receipt = node.append_to("emma", events)    # its position is like hamburg.1:3

In the folder, beside what `merge` makes of it:

    nodes/NAME/epoch        whose turn as owner it is: the number of the owner, which only ever grows, and its token
    nodes/NAME/E/           the log of epoch E, a journal as any other, written by the owner of epoch E alone
    nodes/NAME/E/owner      locked by that owner for as long as it lives
    nodes/NAME/E/sealed/end where its successor closed that log; nothing behind it counts
    nodes/NAME/E/index/     derived: each entity's last sequence, over all logs
    nodes/NAME/E/places/    derived: where the event with an id stands, over all logs
    slots/                  which node writes which entities

`writer` has the way of an append and of a takeover, `epoch` the fence, `log` the logs and how one is sealed, `slots`
how entities move from node to node, `lasts` what the sequences come from, `ids` how a repeated append is known.
"""

from stateside.journal.nodes.node_writer import NodeWriter

__all__ = ["NodeWriter"]
