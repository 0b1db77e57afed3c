"""The demo: the whole system on one machine, about a minute of it, and the proof that everything added up.

`run` starts and stops the parts, `feeder` lets the months pass, `asker` is the client that keeps asking, `display` what
people watch meanwhile, `report` what is left to read.
"""
