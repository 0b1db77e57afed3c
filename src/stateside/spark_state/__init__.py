"""Spark's state on disk: readers of logs, changelogs, snapshots and row formats. Read only, and without Spark.

Batches: `batch_log` (offsets, commits). State stores: `provider` (which one a query uses, its files, a batch's changes,
and the HDFS-backed store). RocksDB: `changelog` (changes), `rocksdb_snapshot` (all of the state at one version, and
changes without changelogs). Files: `checksum`, `compression`. Many changes at once: `slices`. Columns and rows:
`types`, `unsafe_row`, `avro_row`, `arrow_rows`. `transformWithState`: `state_variables`, `column_families`.
`checkpoint_folder` checks whether a folder is a checkpoint at all.
"""

from typing import TYPE_CHECKING

from stateside.core.extras import lazy

if TYPE_CHECKING:
    from stateside.spark_state.batch_log import BatchRange, Checkpoint
else:
    __getattr__ = lazy(
        __name__,
        {
            "stateside.spark_state.batch_log": ["BatchRange", "Checkpoint"],
        },
    )

__all__ = [
    "BatchRange",
    "Checkpoint",
]
