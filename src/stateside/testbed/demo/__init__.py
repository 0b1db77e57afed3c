"""The demo: the whole system on one machine, about a minute of it, and the proof that everything added up.

`run` starts and stops the parts, `asker` is the client that keeps asking, `display` what people watch meanwhile
(`document_counts` counts for it), `report` is what is left to read, and `snapshot` what is left to look at. What it
shares with chaos is in `ops/stage/`.
"""
