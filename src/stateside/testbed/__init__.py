"""The testbed: the billing system as processes on one machine, under load, and the proof that everything adds up.

`system` starts, supervises and stops the parts (`component`), with a Kafka broker (`broker`) and a Spark cluster
(`cluster`) where the run has them. `feeder` appends the events of compressed months, in a process of its own where
faults may kill it (`producer`); `witness` keeps asking; `proof` audits the outcome. `demo` runs the system without a
fault, with a display and a report; `chaos` injects the faults of scenarios. `run_folder` has the working folder.
"""
