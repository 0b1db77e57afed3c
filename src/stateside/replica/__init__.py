"""Replicas: a view's state, copied batch by batch out of Spark's checkpoint into LMDB, for any number of readers.

`tail` follows the checkpoint, and `translation` turns Spark's changes into keys and rows; `keys` encodes keys in byte
order, `key_blocks` many at once. `store` applies rows, `lists`, rollups (`rollup_tables`) and undo records (`history`)
in transactions of an `lmdb` environment, by the tables of `key_table`. `replica_reader` reads `snapshot`s, as of the
newest batch or an older one; `changes` are those between two batches. Every page has a checksum in `checksums`:
`integrity` maintains them, `page_reader` verifies pages by them, down the trees of `btree`. Where batches are gone or
replaced, or the replica is damaged, `bootstrap` loads snapshots of the state into a new environment (`environment`). A
replica may hold only one `shard` of the keys.
"""

from typing import TYPE_CHECKING

from stateside.core.extras import lazy

if TYPE_CHECKING:
    from stateside.replica.checksums import Unchecked
    from stateside.replica.replica_reader import ReplicaReader
    from stateside.replica.tail import Tail
else:
    __getattr__ = lazy(
        __name__,
        {
            "stateside.replica.checksums": ["Unchecked"],
            "stateside.replica.replica_reader": ["ReplicaReader"],
            "stateside.replica.tail": ["Tail"],
        },
    )

__all__ = [
    "ReplicaReader",
    "Tail",
    "Unchecked",
]
