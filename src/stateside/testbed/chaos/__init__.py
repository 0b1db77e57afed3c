"""Chaos: the whole system under load, something bad done to it, and the auditor's judgement of what came out.

A *scenario* (`scenarios`) is a system of some shape (`system`) and the faults (`faults`) that it has to stand, one
after the other. `run` goes through it: it starts the system, has a client ask all the time (`witness`) and a producer
append (`writer`), injects the fault, heals it, waits until all has come to rest, and has it audited (`judgement`).
`report` is what is left to read, and `matrix` makes the docs' crash matrix of it.

A scenario has no say in the judgement: the auditor's laws and the generator's even sums decide, as in the demo.
"""
