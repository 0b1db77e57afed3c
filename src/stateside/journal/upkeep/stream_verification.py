"""Verification of a journal that others store, as a topic of Kafka: reads all of it, changes nothing.

Checksums and copies are the broker's affair. Checked are that every message is an event, and that each entity's
sequences go on by one. Views are not compared: a query does that with every event which it reads by them.
"""

from __future__ import annotations

from stateside.errors import JournalCorrupt
from stateside.journal.stream import Stream, located
from stateside.journal.stream import begin as begin_of
from stateside.journal.upkeep.findings import Findings
from stateside.journal.upkeep.log_check import LogCheck
from stateside.journal.upkeep.verdict import Verdict
from stateside.journal.upkeep.verification import Watch, nobody
from stateside.positions import Position


def verify_stream(stream: Stream, watch: Watch = nobody) -> Verdict:
    """Read every partition up to its end now. The watch is told how many offsets are read, of how many."""
    findings = Findings()
    verdict = Verdict(findings)
    begin, end = begin_of(stream), stream.end()
    reached, total = begin, end.events() - begin.events()
    for partition in stream.partitions():
        findings.where = f"partition {partition}"
        log = LogCheck(findings, None if begin[partition] else {})
        try:
            for offsets, batch in located(stream, partition, begin[partition], end[partition]):
                log.take(offsets, batch)
                verdict.events += batch.num_rows
                reached = reached.joined(Position.of({partition: int(offsets[-1]) + 1}))
                watch(reached.events() - begin.events(), total)
        except JournalCorrupt as damage:
            findings.add("damage", f"{damage.what} ({damage.where})", damage.next_step or "")
            verdict.notes.append(f"What stands around that in partition {partition} was not looked at.")
        verdict.entities += len(log.lasts)
    verdict.end = end.events()
    watch(total, total)
    return verdict
