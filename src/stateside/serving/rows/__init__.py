"""Row reads: queries against a view's replica and archive, answered from one snapshot, with the snapshot's stamp.

`view_readers` keeps a `view_reader` per view. A `relation` is a view or rollup as one principal sees it; `shape` and
`columns` map keys and columns, `archive` has the sealed rows. A `row_query` is answered page by page, or as
a lookup of whole keys.
"""
