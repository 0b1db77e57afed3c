"""SQL over views, their rollups and the archive: one statement, one snapshot of each view that it names, nothing else.

A statement runs in a DuckDB of its own (`engine`), which has the relations that the statement names and whose rows its
holder may have (`relations`, `live`, `sealed`), and is gone when it ends. What it may be, `statement` looks through
before it runs; how long it may take, `runner`; what comes back, `result`. All of that happens in processes beside the
worker (`process`), which the worker asks (`remote`), and of which each is for one token at a time (`pool`).
"""
