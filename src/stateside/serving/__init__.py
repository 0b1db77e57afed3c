"""The server: answers requests over HTTP from the replicas and the archive, each answer with a stamp.

`stamp` is the freshness of an answer, `rows` reads replicas and archive, `changes` streams changes, `sql` runs
statements, `web` has protocol and routes, `fast_path` the point lookups, `access` the tokens and limits, `registry` the
servers of a folder, `health` status and metrics, `clients` the Python clients. `follower` moves the replicas, `server`
runs uvicorn.
"""
