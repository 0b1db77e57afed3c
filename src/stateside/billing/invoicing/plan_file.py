"""`views/bill/plans.json`: the versions of plans that rows and documents refer to, for readers without the journal.

    {"basic@3": the version's payload, as in its publication, …}

It only ever grows. The sink extends it, and the view's `steps.json` with the prices, before the batch that is the first
to refer to a version is committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from stateside.billing.plans.file import PlanVersion
from stateside.core.errors import CheckpointInvalid, PlanInvalid
from stateside.core.layout import ViewLayout
from stateside.core.storage import write_atomically
from stateside.views.computed import extend_steps


def plan_file(places: ViewLayout) -> Path:
    """Where the versions of a view's plans stand."""
    return places.root / "plans.json"


def load_plans(places: ViewLayout) -> dict[str, PlanVersion]:
    """The versions by their ids; none before the first batch. CheckpointInvalid if the file is damaged."""
    try:
        content = json.loads(plan_file(places).read_bytes())
        return {id_: PlanVersion.from_payload(payload) for id_, payload in content.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, PlanInvalid) as error:
        raise CheckpointInvalid(
            f"The plans of the view cannot be read: {error!r}",
            where=str(plan_file(places)),
            next_step="Restore this file from a copy, or delete it: the view's sink writes it again at its next batch",
        ) from error


def extend_plans(places: ViewLayout, plans: Mapping[str, PlanVersion]) -> None:
    """Have these versions in both files, which are written only if one is new. There is one writer: the view's sink."""
    extend_steps(places.steps, {key: steps for plan in plans.values() for key, steps in plan.step_entries().items()})
    known = load_plans(places)
    if plans.keys() - known.keys():
        content = {id_: plan.as_payload() for id_, plan in sorted({**known, **plans}.items())}
        write_atomically(plan_file(places), json.dumps(content).encode())
