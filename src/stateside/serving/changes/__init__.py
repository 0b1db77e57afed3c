"""Changes: who watches a view is told its rows, then batch by batch what changed. `web/changes_routes` speaks it.

`question` is what a watcher asks for, `event` how it is told, `pages` reads both out of the replica; `feed` finds new
batches and tells all watchers of a view, `watch` is one watcher's way from its first row on.
"""
