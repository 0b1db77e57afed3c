"""The condition of a journal written by nodes: the merge's lag, and the entities that wait for a missing event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stateside.core.errors import StatesideError
from stateside.journal.backends.nodes import MergedJournal
from stateside.journal.location import is_merged


@dataclass(frozen=True, slots=True)
class MergeCondition:
    """`behind`: per log, the durable events not yet in the stream; `gap_s`: the age of the oldest gap.

    `trouble`: logs or stream cannot be read; then the other fields are unknown.
    """

    gaps: int = 0
    gap_s: float = 0.0
    behind: Mapping[str, int] = field(default_factory=dict)
    trouble: bool = False


def merge_condition(journal: Path, now_us: int) -> MergeCondition | None:
    """The condition of the journal in this folder; None without nodes. Reads only end marks and last frames."""
    try:
        return _condition(journal, now_us) if is_merged(journal) else None
    except (OSError, StatesideError):
        return MergeCondition(trouble=True)


def _condition(journal: Path, now_us: int) -> MergeCondition:
    stream = MergedJournal(journal)
    stalled, done = stream.stalled(), stream.merged().done
    behind = {name: end - done[name] for name, end in stream.log_ends().items()}
    since_us = min((gap.since_us for gap in stalled.shown), default=now_us)
    return MergeCondition(stalled.count, max(0, now_us - since_us) / 1_000_000, behind)
