"""Change streams: a subscriber gets the rows of a view, then the changes of each batch (HTTP: `web.changes_routes`).

`subscription` selects the rows, `sse` formats the events, `pages` reads both from the replica; `feed` finds new batches
and distributes them to the subscribers of a view, `watch` runs one subscriber from its first row on.
"""
