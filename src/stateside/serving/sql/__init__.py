"""SQL over views, rollups and the archive: one statement, one snapshot of each view named in the statement.

A statement runs in its own DuckDB (`execution`), which has only the relations that the statement names and the rows
that its principal may see (`relations`, `cache`), and ends with the statement. `statement` checks the text before it
runs, `result` writes the rows. Statements run in processes beside the worker (`process`), which limit their time; the
worker's `pool` gives each process to one token at a time.
"""
