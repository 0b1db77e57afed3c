"""The answers: each one stamped, over HTTP.

`stamp` says how fresh an answer is, `views` reads replicas, `http` routes requests, `server` runs it all on Granian,
`client` asks it from Python.
"""
