"""Reads what Spark wrote. Pure Python, read only: it never starts Spark and never writes into a checkpoint.

`log` has the batches (offsets, commits), `provider` which store the state is in; `changelog` (of RocksDB) and `delta`
(of the HDFS-backed store) have the changes of state, in `blocks` of `slices`; `state_file`, `compression` and
`checksum` their files; `snapshot` and again `delta` have all of the state at one version, `schema` its columns,
`unsafe_row` Spark's row format, `arrow_rows` many rows as Arrow; of a `transformWithState` `state_variables` has what
it keeps, and `column_families` which changes are whose. Beside the checkpoint lie `catalogue` (completed by
`variable_catalogue`) and `heartbeat`, which Stateside's runner writes and every reader relies on, and
`steps`, by which a column follows from another. Of a checkpoint that
is not ours `place` tells whether it is one, `inferred` what its views are, and `declared` what its owner says of them.
"""
