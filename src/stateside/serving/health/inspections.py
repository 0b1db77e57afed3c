"""Inspections of a folder with what servers know: replicas, leader, standbys. For routes and the command line."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from stateside.core.errors import StatesideError
from stateside.inspection.examination import Inspection, Inspector, ReplicaStanding, ViewInspection
from stateside.inspection.rules import Finding, findings
from stateside.leadership import standing
from stateside.serving.health.condition import ViewCondition
from stateside.serving.registry.announcer import Servers

FORGOTTEN_MS: Final = 7 * 86_400_000  # a server that was silent for so long does not come back


class FolderInspector:
    """Inspects a checkpoint or a folder, again and again. Thread-safe; reads files: not for the event loop."""

    def __init__(self, location: str | Path) -> None:
        self._inspector = Inspector(str(location))

    def inspect(self, own: Sequence[ViewCondition] | None = None) -> Inspection:
        """The inspection; `own` are the conditions of this server's replicas, None where no server asks.

        A server's folder may have no view yet, or a checkpoint that is away: replicas are judged all the same.
        """
        now_us = time.time_ns() // 1_000
        try:
            inspection = self._inspector.inspect(now_us)
        except (StatesideError, OSError):
            if own is None:
                raise
            views = tuple(ViewInspection(each.view, "", now_us) for each in own)
            inspection = Inspection(now_us, self._inspector.location, views)
        folder = Path(inspection.location)
        if not folder.is_dir():
            return inspection
        replicas = [*_own(own or ()), *_announced(folder, now_us, live=own is None)]
        views = tuple(replace(view, replicas=_of(view, replicas)) for view in inspection.views)
        return replace(inspection, views=views, leadership=standing(folder, now_us))

    def findings(self, own: Sequence[ViewCondition]) -> list[Finding]:
        """The findings with these replicas."""
        return findings(self.inspect(own))


def _own(conditions: Sequence[ViewCondition]) -> Iterator[ReplicaStanding]:
    for each in conditions:
        yield ReplicaStanding(each.view, None, each.batch, each.lag_batches, each.trouble)


def _announced(folder: Path, now_us: int, *, live: bool) -> Iterator[ReplicaStanding]:
    """The replicas of servers that have fallen silent, and with `live` of the others too."""
    servers = Servers(folder)
    for path in servers.folder.glob("*.json"):
        found = servers.read(path)
        if found is None or found.silent_ms(now_us) > FORGOTTEN_MS or (found.counts(now_us) and not live):
            continue
        for view, held in found.views.items():
            yield ReplicaStanding(view, found.name, held.batch, silent_ms=found.silent_ms(now_us))


def _of(view: ViewInspection, replicas: Sequence[ReplicaStanding]) -> tuple[ReplicaStanding, ...]:
    """Those of the view; all of them for a query of others, whose views have one checkpoint."""
    return tuple(each for each in replicas if each.view == view.view or not view.ours)
