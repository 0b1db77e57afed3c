"""The demo: the whole system on one machine, about a minute of it, and the proof that everything added up.

`run` starts and stops the parts, `supervised` is a part that is started again when it ends, `feeder` lets the months
pass, `asker` is the client that keeps asking, `display` what people watch meanwhile (`document_counts` counts for it),
`proof` compares what came out with what was generated, `report` is what is left to read. `folder` is where it all lies,
and `interrupts` are how people end it before its time.
"""
