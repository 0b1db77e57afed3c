"""The verdict of a verification: what was read, what was found to be wrong, and what is worth knowing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stateside.journal.upkeep.findings import Findings


@dataclass(slots=True)
class Verdict:
    """What was read, and what was found. `notes` are worth knowing, and nothing is wrong with them."""

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
        """Whether nothing is wrong."""
        return not self.findings.shown

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        numbers = {name: getattr(self, name) for name in ("end", "segments", "frames", "events", "entities")}
        found = {"findings": self.findings.as_list(), "counts": self.findings.counts}
        return {"ok": self.ok} | numbers | {"compared": self.compared, "notes": self.notes} | found

    def lines(self) -> list[str]:
        """For people."""
        head = [f"{self.events:,} events of {self.entities:,} entities{self._stored()}"]
        told = [finding.sentence() for finding in self.findings.shown]
        counts = ", ".join(f"{count:,} {kind}" for kind, count in self.findings.counts.items())
        return head + self.notes + told + [f"Wrong: {counts}" if counts else "Nothing is wrong."]

    def _stored(self) -> str:
        """How they are stored, where that is Stateside's affair."""
        if not self.segments:
            return ""
        frames = f" in {self.frames:,} frames of {self.segments:,} segments, up to offset {self.end:,}"
        return f"{frames}; compared with the log: {', '.join(self.compared) or '-'}"

    def add(self, other: Verdict) -> None:
        """What was read of a part of the journal; its findings are the same object."""
        for name in ("end", "segments", "frames", "events", "entities"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.notes.extend(other.notes)
        self.compared.extend(name for name in other.compared if name not in self.compared)
