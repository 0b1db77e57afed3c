"""The testbed: infrastructure shared by the demo and the chaos scenarios.

`system` prepares the journal's broker and Spark's cluster, where a run has them (`broker`, `cluster`); `component` has
supervised processes and interrupts; `feeder` replays compressed months; `proof` compares the outcome with the
generator's expectation; `demo_folder` has the working folder and the report file for machines.
"""
