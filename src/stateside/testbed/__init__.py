"""The stage: what the demo and the scenarios of chaos have in common.

`ground` is what the system stands on, a broker and a cluster where it has them; `supervised` is a part that is started
again when it ends; `feeder` lets the months pass; `proof` compares what came out with what was generated. `folder` is
where it all lies, `report_file` where machines find the report, and `interrupts` are how people end it before its time.
"""
