"""Replicas: a view's state, copied batch by batch out of Spark's checkpoint into LMDB, for any number of readers.

`keys` orders the rows, many at once with `key_encoder`; `store` moves them and their `rollups` in transactions of an
LMDB `environment`, `tail` follows the checkpoint. Where batches are gone `load` begins anew from snapshots of the
state, in an environment of its own (`generations`), which `new_replica` fills in the order of the keys (`runs`) while
`progress` tells how far it is.
"""
