"""A shop's view, and statements over it, run as a worker process of the server runs them; without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.layout import Layout
from stateside.core.storage import write_atomically
from stateside.replica.tail import Tail
from stateside.serving.access.principal import OPERATOR, Principal
from stateside.serving.rows.floor import Floor
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.sql.process import Left, SqlRunner
from stateside.serving.sql.sql_query import SqlQuery
from stateside.views.catalogue import Computed
from stateside.views.functions import ColumnFunction, extend_functions
from tests.replica import spark_job
from tests.replica.spark_job import Job

PRICE = Computed("price", of="total", by=("country",))
STATE: spark_job.Changes = {("emma", "de"): (2, 104), ("ben", "de"): (1, 60), ("ben", "fr"): (3, 7)}
FUNCTIONS: dict[tuple[str, ...], ColumnFunction] = {
    ("de",): Tiers((Tier(0, 0, 1), Tier(100, 3, 2))),
    ("fr",): Tiers((Tier(0, -1, 1),)),
}


def shop(layout: Layout, state: spark_job.Changes | None = None, view: str = "spending") -> Job:
    """A job with a view of these rows, whose replica is up to date."""
    job = Job(layout.view(view))
    catalogue = replace(spark_job.catalogue([["country"], ["country", "customer"], []]), view=view, computed=(PRICE,))
    write_atomically(job.view.catalogue, catalogue.as_json())
    extend_functions(job.view.functions, FUNCTIONS)
    job.run(STATE if state is None else state)
    follow(job)
    return job


def follow(job: Job) -> None:
    """Bring the view's replica up to date."""
    tail = Tail(job.view)
    tail.step()
    tail.close()


class Asker:
    """Asks one worker's runner."""

    def __init__(self, layout: Layout, runner: SqlRunner | None = None, views: ViewReaders | None = None) -> None:
        self.layout, self.runner = layout, runner or SqlRunner(layout)
        self._views = views or ViewReaders(layout)

    def anew(self) -> Asker:
        """Another one, which has kept nothing yet."""
        return Asker(self.layout, views=self._views)

    def content(
        self,
        text: str,
        parameters: Any = (),
        *,
        holder: Principal = OPERATOR,
        floor: Floor | None = None,
        left: Left | None = None,
        **question: Any,
    ) -> bytes:
        """The written result."""
        asked = SqlQuery.parse({"sql": text, "parameters": parameters or None, **question})
        return asyncio.run(self._content(asked, holder, floor or Floor(wait_ms=0), left or _stays))

    def document(self, text: str, parameters: Any = (), **options: Any) -> dict[str, Any]:
        """The result as JSON has it."""
        found: dict[str, Any] = json.loads(self.content(text, parameters, **options))
        return found

    def rows(self, text: str, parameters: Any = (), **options: Any) -> list[Sequence[Any]]:
        """Its rows."""
        found: list[Sequence[Any]] = self.document(text, parameters, **options)["rows"]
        return found

    def let_go(self) -> None:
        """Close the replicas, so that this process may write them; the next question opens them again."""
        for replica in self._views._replicas.values():
            replica.close()
        self._views = ViewReaders(self.layout)

    async def _content(self, question: SqlQuery, holder: Principal, floor: Floor, left: Left) -> bytes:
        running = await self.runner.run(question, self._views, holder, floor, left)
        try:
            return b"".join([part async for part in running])
        finally:
            await running.aclose()


async def _stays() -> None:
    await asyncio.Event().wait()
