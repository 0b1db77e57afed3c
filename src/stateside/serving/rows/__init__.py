"""Views as readers see them: rows out of a replica, in one snapshot, with the stamp of that snapshot.

`views` has a `reader` for each; its `shape` and `columns` say how rows are asked for and shown. A `question` is
answered page by page (`scan`, `cursor`) or, if it is for whole keys, by a `lookup`, within the `scope` of who asks.
"""
