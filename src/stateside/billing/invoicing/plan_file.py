"""`views/bill/plans.json`: the plan versions that rows and documents refer to, for readers without the journal.

    {"basic@3": the version's payload, as in its publication, …}

The file only ever grows. The sink extends it, and the view's table of functions with the prices, before Spark commits
the first batch that refers to a version.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stateside.billing.plans.file import PlanVersion
from stateside.core import JsonFile, ViewLayout
from stateside.core.errors import CheckpointInvalid
from stateside.views import extend_functions

_PLANS: JsonFile[dict[str, PlanVersion]] = JsonFile(
    "The plans of the view",
    lambda document: {id_: PlanVersion.from_payload(payload) for id_, payload in document.items()},
    lambda plans: {id_: plan.as_payload() for id_, plan in sorted(plans.items())},
    damage=CheckpointInvalid,
    next_step="Restore this file from a copy, or delete it: the view's sink writes it again at its next batch",
)


def plan_file(places: ViewLayout) -> Path:
    return places.root / "plans.json"


def load_plans(places: ViewLayout) -> dict[str, PlanVersion]:
    """The versions by id; empty before the first batch. CheckpointInvalid if the file is damaged."""
    return _PLANS.read(plan_file(places)) or {}


def extend_plans(places: ViewLayout, plans: Mapping[str, PlanVersion]) -> None:
    """Add these versions to both files, written only if one is new. The view's sink is the only writer."""
    entries = [entry for plan in plans.values() for entry in plan.table_entries().items()]
    extend_functions(places.functions, dict(entries))
    known = load_plans(places)
    if plans.keys() - known.keys():
        _PLANS.write(plan_file(places), {**known, **plans})
