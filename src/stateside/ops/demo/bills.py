"""What the display shows of bills and documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow.compute as pc

from stateside.archive import ArchiveTable
from stateside.billing.generator.scenario import Scenario
from stateside.ops.demo.display import RunningBill
from stateside.serving.stamp import parse_time


class Bills:
    """Makes bills of the view's rows; knows the names of the periods."""

    def __init__(self, scenario: Scenario) -> None:
        self._names = {
            (version.id, period.end_us): (period.label, version.currency)
            for group in scenario.groups
            for version in group.versions
            for period in group.periods
        }

    def running(self, rows: Iterable[Mapping[str, Any]]) -> list[RunningBill]:
        """The open periods of some customers; the rows come in key order: by customer, then period."""
        bills = []
        for (customer, end), group in groupby(rows, key=lambda row: (row["customer"], row["period_end"])):
            lines = list(group)
            period, currency = self._names[lines[0]["plan"], parse_time(end)]
            events, amount_micros = (sum(line[name] for line in lines) for name in ("events", "amount_micros"))
            bills.append(RunningBill(customer, period, currency, events, amount_micros))
        return bills


@dataclass(slots=True)
class DocumentCounts:
    """How many documents there are, of which periods; the table is read only when there are more than before."""

    table: ArchiveTable
    invoices: int = 0
    notes: int = 0
    periods: tuple[str, ...] = ()

    def look(self) -> DocumentCounts:
        """Bring the counts up to date."""
        if self.table.count() != self.invoices + self.notes:
            documents = self.table.read()
            self.invoices = pc.sum(pc.equal(documents["kind"], "invoice")).as_py() or 0
            self.notes = documents.num_rows - self.invoices
            self.periods = tuple(sorted(documents["period"].unique().to_pylist()))
        return self
