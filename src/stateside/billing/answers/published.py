"""The versions of plans that rows and documents refer to, as readers have them: from the view's `plans.json`.

The file only ever grows, and has a version before the first row that refers to it can be seen. So a reader that meets
one which it does not know reads the file again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stateside.billing.plans.file import PlanVersion
from stateside.errors import CheckpointInvalid


class PublishedPlans:
    """The versions by their ids, read when one is asked for that is not known yet."""

    def __init__(self, load: Callable[[], Mapping[str, PlanVersion]], where: str) -> None:
        self._load, self._where = load, where
        self._plans: Mapping[str, PlanVersion] = {}

    def get(self, plan: str) -> PlanVersion:
        """The version of this id; CheckpointInvalid, which names it, if a row refers to one that is not there."""
        if plan not in self._plans:
            self._plans = self._load()
        if plan not in self._plans:
            raise CheckpointInvalid(
                f"There is no plan {plan!r}, which a row refers to",
                where=self._where,
                next_step="Restore this file from a copy, or delete it: the view's sink writes it at its next batch",
            )
        return self._plans[plan]

    def all(self) -> Mapping[str, PlanVersion]:
        """All versions that the file has now."""
        self._plans = self._load()
        return self._plans
