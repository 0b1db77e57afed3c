"""Replicas: a view's state, copied batch by batch out of Spark's checkpoint into LMDB, for any number of readers.

`keys` orders the rows, many at once with `key_encoder`; `store` moves them, their `rollups` and their `history` in
transactions of an LMDB `environment`, `reader` reads them, as of an older batch through `past`. Every page has its
checksum in `checksums`: `integrity` keeps them, `verified` reads by them, down the trees that `btree` knows. `tail`
follows the checkpoint, `waking` tells it when. Where batches are gone, or others, or the replica is damaged, `load`
begins again from snapshots of the state, in an environment of its own (`generations`), which `new_replica` fills in the
order of the keys (`runs`) while `progress` tells how far it is. A replica may hold only its `share` of the keys.
"""
