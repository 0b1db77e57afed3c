"""The answers: each one stamped, over HTTP.

`stamp` says how fresh an answer is, `reading` reads replicas, `web` routes requests, `access` says who may ask, `place`
who has which keys, `server` runs it all on uvicorn, `clients` ask it from Python.
"""
