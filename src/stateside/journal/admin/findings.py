"""Findings of a verification, and its result: what was read, what is wrong, and notes.

The first five findings of each kind are kept in words, the others as a number.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final

SHOWN_MAX: Final = 5  # of a kind


@dataclass(frozen=True, slots=True)
class JournalFault:
    """A fault: its kind, a description, and what to do about it."""

    kind: str
    what: str
    next_step: str

    def sentence(self) -> str:
        return f"{self.what}. {self.next_step}."


class Findings:
    """All faults found so far."""

    def __init__(self) -> None:
        self.where: str | None = None  # the part of the journal under verification
        self.shown: list[JournalFault] = []
        self._counts: Counter[str] = Counter()

    def add(self, kind: str, what: str, next_step: str) -> None:
        self._counts[kind] += 1
        if self._counts[kind] <= SHOWN_MAX:
            self.shown.append(JournalFault(kind, what if self.where is None else f"{self.where}: {what}", next_step))

    @property
    def counts(self) -> dict[str, int]:
        """The number of faults of each kind, including those not shown."""
        return dict(self._counts)

    def as_list(self) -> list[dict[str, Any]]:
        return [asdict(finding) for finding in self.shown]


@dataclass(slots=True)
class VerificationResult:
    """The result of a verification. `notes` are worth knowing, but no faults."""

    findings: Findings
    end: int = 0
    segments: int = 0
    frames: int = 0
    events: int = 0
    entities: int = 0
    compared: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings.shown

    def as_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in ("end", "segments", "frames", "events", "entities")}
        found = {"findings": self.findings.as_list(), "counts": self.findings.counts}
        return {"ok": self.ok} | numbers | {"compared": self.compared, "notes": self.notes} | found

    def lines(self) -> list[str]:
        head = [f"{self.events:,} events of {self.entities:,} entities{self._stored()}"]
        told = [finding.sentence() for finding in self.findings.shown]
        counts = ", ".join(f"{count:,} {kind}" for kind, count in self.findings.counts.items())
        return head + self.notes + told + [f"Wrong: {counts}" if counts else "Nothing is wrong."]

    def _stored(self) -> str:
        """How the events are stored; empty for a stream stored by others."""
        if not self.segments:
            return ""
        frames = f" in {self.frames:,} frames of {self.segments:,} segments, up to offset {self.end:,}"
        return f"{frames}; compared with the log: {', '.join(self.compared) or '-'}"

    def add(self, other: VerificationResult) -> None:
        """Add the result of a part of the journal; its findings are the same object."""
        for name in ("end", "segments", "frames", "events", "entities"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.notes.extend(other.notes)
        self.compared.extend(name for name in other.compared if name not in self.compared)
