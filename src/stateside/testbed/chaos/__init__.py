"""Chaos: the whole system under load, faults injected into it, and the auditor's verdict.

A *scenario* (`scenarios`) is a system of some shape (`billing_system`) and the faults (`faults`) injected into it, one
after the other. `scenario_run` starts the system with a client that keeps asking (`witness`) and a producer that
appends (`producer`, `load`), injects the fault, heals it, waits until all has come to rest, and audits the result.
`report` has the results and the docs' crash matrix.

A scenario has no influence on the verdict: the auditor's laws and the generator's even sums decide, as in the demo.
"""
