"""Row reads: queries against a view's replica, answered from one snapshot and with the stamp of the snapshot.

`view_readers` keeps a `view_reader` per view; `shape` and `view_columns` map keys and columns. A `row_query` is
answered page by page (`scan`), or as a `lookup` of whole keys, within the `scope` of the principal.
"""
