"""Findings: what a verification found to be wrong, the first of each kind in words and the others as a number."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Final

SHOWN_MAX: Final = 5  # of a kind


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong: of which kind, what, and what to do about it."""

    kind: str
    what: str
    next_step: str

    def sentence(self) -> str:
        """For people."""
        return f"{self.what}. {self.next_step}."


class Findings:
    """All that was found so far."""

    def __init__(self) -> None:
        self.where: str | None = None  # which part of the journal is looked at now
        self.shown: list[Finding] = []
        self._counts: Counter[str] = Counter()

    def add(self, kind: str, what: str, next_step: str) -> None:
        """One more."""
        self._counts[kind] += 1
        if self._counts[kind] <= SHOWN_MAX:
            self.shown.append(Finding(kind, what if self.where is None else f"{self.where}: {what}", next_step))

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each kind, those that are not shown too."""
        return dict(self._counts)

    def as_list(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [asdict(finding) for finding in self.shown]
