"""Replicas: a view's state, copied batch by batch out of Spark's checkpoint into LMDB, for any number of readers.

`keys` orders the rows, `store` moves them, their `rollups` and their `history` in transactions of an LMDB
`environment`, `reader` reads them, as of an older batch through `past`. `tail` follows the checkpoint, `waking` tells
it when. Where batches are gone, or others, `load` begins anew from snapshots of the state, in an environment of its own
(`generations`). A replica may hold only its `share` of the keys.
"""
