"""Change streams: a subscriber gets the rows of a view, then the changes of each batch (HTTP: `web.view_routes`).

`subscription` selects the rows and reads their pages, `sse` formats the events. `feed` finds new batches and sends them
to the subscribers of a view, `watch` runs one subscriber from its first row on.
"""
