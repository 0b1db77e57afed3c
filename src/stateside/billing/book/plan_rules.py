"""The rules that accept or refuse publications of plans and assignments, one by one in the journal's order.

- A version has a higher number than the version before, and takes effect later.
- A version takes effect at least `FUTURE_US_MAX` after its append. No event may lie further beyond its own append time,
  so every event that the version applies to comes after the version in the journal, and a replay rates the event alike.
- The same holds for assignments of a customer, except that the first one may take effect at any time.

An event that breaks a rule is refused, with the reason, and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from stateside.billing.model import ASSIGN, FUTURE_US_MAX, PLAN
from stateside.billing.plans.plan import PlanVersion
from stateside.core.errors import PlanInvalid

PLAN_REFUSED = "plan-refused"
ASSIGN_REFUSED = "assign-refused"
_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Reference:
    """A publication or an assignment, as stored in the journal."""

    offset: int
    id: str
    entity: str
    type: str
    appended_us: int
    payload: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """A plan that rates a customer from a time on. `holder` is the name on the bill."""

    offset: int
    effective_us: int
    plan: str
    holder: str | None


@dataclass(frozen=True, slots=True)
class Refused:
    """A publication or an assignment that broke a rule."""

    offset: int
    id: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Fold:
    """Accepted and refused events, on top of the newest version per plan and the newest effective time per customer."""

    newest_versions: dict[str, PlanVersion]
    newest_effective_us: dict[str, int]
    versions: list[tuple[int, PlanVersion]] = field(default_factory=list)
    assignments: dict[str, list[Assignment]] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)

    def add(self, references: Iterable[Reference]) -> None:
        """Apply reference events in the journal's order."""
        for reference in references:
            if reference.type == PLAN:
                detail = self._publish(reference)
                reason = PLAN_REFUSED
            else:
                assert reference.type == ASSIGN, reference
                detail = self._assign(reference)
                reason = ASSIGN_REFUSED
            if detail is not None:
                self.refused.append(Refused(reference.offset, reference.id, reason, detail))

    def _publish(self, reference: Reference) -> str | None:
        """Accept a version, or return the reason for refusing it."""
        try:
            version = PlanVersion.from_payload(json.loads(reference.payload))
        except PlanInvalid as error:
            return error.sentence()
        detail = self._version_fault(reference, version)
        if detail is None:
            self.newest_versions[version.plan] = version
            self.versions.append((reference.offset, version))
        return detail

    def _version_fault(self, reference: Reference, version: PlanVersion) -> str | None:
        if version.plan != reference.entity:
            return f"The event is about {reference.entity!r}, its payload about the plan {version.plan!r}"
        before = self.newest_versions.get(version.plan)
        if before and version.version <= before.version:
            return f"There is already version {before.version} of {version.plan!r}; {version.version} is not higher"
        least_us = reference.appended_us + FUTURE_US_MAX
        return _too_early(version.effective_us, max(least_us, before.effective_us + 1 if before else 0))

    def _assign(self, reference: Reference) -> str | None:
        """Accept an assignment, or return the reason for refusing it."""
        payload: dict[str, Any] = json.loads(reference.payload)
        plan, effective_us, holder = (payload.get(name) for name in ("plan", "effective_us", "holder"))
        if not isinstance(plan, str) or not plan:
            return f"{plan!r} is no plan's name"
        if not isinstance(effective_us, int) or isinstance(effective_us, bool) or not 0 <= effective_us <= _LONG_MAX:
            return f"effective_us {effective_us!r} is not a number of microseconds since 1970"
        before_us = self.newest_effective_us.get(reference.entity)
        if before_us is not None:
            detail = _too_early(effective_us, max(reference.appended_us + FUTURE_US_MAX, before_us + 1))
            if detail:
                return detail
        self.newest_effective_us[reference.entity] = effective_us
        accepted = Assignment(reference.offset, effective_us, plan, holder if isinstance(holder, str) else None)
        self.assignments.setdefault(reference.entity, []).append(accepted)
        return None


def _too_early(effective_us: int, least_us: int) -> str | None:
    if effective_us >= least_us:
        return None
    return (
        f"It takes effect at {effective_us}, {least_us} is the earliest allowed: an hour on, and after the one before"
    )
