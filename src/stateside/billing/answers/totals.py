"""A period's totals over all customers, by currency and type of usage: live rows and documents, in one answer.

Why every answer is right, also while periods are being sealed:

1. The live part is the view's rollup, in one snapshot of the replica, at a batch N.
2. The documents are read afterwards, and only documents that pass the gate of N's position and watermark count:
   `document_store` explains why every event then counts once.

The archive's part is cached by file (see `archive.table_reader`): a file is summed once, on the first request for one
of its periods. An answer then adds up one row for each plan and type of a file's invoices, and one for each line of its
notes.

Amounts are exact; charges on documents are rounded. So that an answer adds up to the cent, each entry has a
`total_micros` of the open and the charged amount, and each currency the `rounding_micros` of its documents: the
currency's total is the sum of its types' totals and the rounding.

A line belongs to the period of its own plan. If a customer has changed to a plan with another cycle, and both periods
end at one moment, their document has one name, but its lines count in the same periods as before the sealing.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.archive import DataFile, FollowedTable
from stateside.billing.answers.document_store import ON_TIME, Gate
from stateside.billing.answers.period_names import Ends, PublishedPlans
from stateside.billing.calendar import utc
from stateside.billing.invoicing.documents import INVOICE, TIME
from stateside.billing.money import checked
from stateside.serving import parse_time

ROLLUP: Final = ("period_end", "plan", "type")
_OF_LINES: Final = ("quantity", "events", "amount_micros", "charged_micros")
_NUMBERS: Final = (*_OF_LINES, "rounding_micros")
_COLUMNS: Final = ("kind", "late", "period_end", "sealed_position", "lines", "rounding_micros")
_EXACT: Final = pa.decimal128(38, 0)  # for sums of longs without overflow
_BY: Final = pa.schema(
    [("end_us", pa.int64()), ("plan", pa.string()), ("type", pa.string()), ("counts_from", pa.int64())]
)
_NONE: Final = pa.schema([*_BY, *((name, _EXACT) for name in _NUMBERS)]).empty_table()


class TotalSums(NamedTuple):
    """Sums of some rows. `charged_micros`, of lines, and `rounding_micros` are of documents only."""

    quantity: int = 0
    events: int = 0
    amount_micros: int = 0
    charged_micros: int = 0
    rounding_micros: int = 0

    def plus(self, other: TotalSums) -> TotalSums:
        return TotalSums(*(mine + its for mine, its in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class TotalsPart:
    """The live or sealed sums of one plan and type in the period that ends at `end_us`."""

    end_us: int
    plan: str
    type: str
    sums: TotalSums

    @classmethod
    def live(cls, row: Mapping[str, Any]) -> TotalsPart:
        """The part of a row of the view's rollup."""
        sums = TotalSums(row["quantity"], row["events"], row["amount_micros"])
        return cls(parse_time(row["period_end"]), row["plan"], row["type"], sums)


class ArchiveSums:
    """The sums of all customers' documents, cached by file. Thread-safe."""

    def __init__(self, table: FollowedTable) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._files: tuple[DataFile, ...] = ()
        self._by_file: dict[Path, pa.Table] = {}

    def of(self, ends_us: Iterable[int] | None, gate: Gate, *, known: bool = False) -> list[TotalsPart]:
        """The sums of the documents that pass a gate, for the periods with these ends; None: for all periods.

        With `known` from the version read last, without I/O; ArchiveAway for files not summed by then.
        """
        ends = None if ends_us is None else {end for end in ends_us if end <= gate.watermark_us}
        with self._lock:
            if not known:
                self._look()
            added = [self._entries(file) for file in self._files if ends is None or _may_have(file, ends)]
        found = pa.concat_tables([_NONE, *added])
        closed = pc.less_equal(found["end_us"], gate.watermark_us)
        asked = closed if ends is None else pc.is_in(found["end_us"], pa.array(ends, pa.int64()))
        counts = pc.less_equal(found["counts_from"], gate.position)
        return list(_sealed(found.filter(pc.and_(asked, counts))))

    def _look(self) -> None:
        files = self._table.files()
        if files is not self._files:
            left = {file.path for file in files}
            self._by_file = {path: entries for path, entries in self._by_file.items() if path in left}
            self._files = files

    def _entries(self, file: DataFile) -> pa.Table:
        if file.path not in self._by_file:
            self._by_file[file.path] = _add_up(file.read(_COLUMNS))
        return self._by_file[file.path]


def _may_have(file: DataFile, ends_us: Iterable[int]) -> bool:
    return any(file.may_have("period_end", utc(end_us)) for end_us in ends_us)


def _add_up(documents: pa.Table) -> pa.Table:
    """The lines of documents by period end, plan, type, and the position from which they count.

    A document's rounding is added to its first line.
    """
    documents = documents.combine_chunks()
    lines, parents = pc.list_flatten(documents["lines"]), pc.list_parent_indices(documents["lines"])
    ends = documents["period_end"].cast(TIME).cast(pa.int64())
    on_time = pc.and_(pc.equal(documents["kind"], INVOICE), pc.invert(documents["late"]))
    counts_from = pc.if_else(on_time, pa.scalar(ON_TIME, pa.int64()), documents["sealed_position"])
    columns = {"end_us": ends.take(parents), "counts_from": counts_from.take(parents)}
    columns |= {name: pc.struct_field(lines, name) for name in ("plan", "type")}
    columns |= {name: pc.struct_field(lines, name).cast(_EXACT) for name in _OF_LINES}
    is_first = np.diff(parents.to_numpy(), prepend=-1) != 0
    roundings = pc.fill_null(documents["rounding_micros"].cast(pa.int64()), 0).take(parents)
    columns["rounding_micros"] = pc.if_else(pa.array(is_first), roundings, 0).cast(_EXACT)
    return _summed(pa.table(columns), _BY.names).select(_NONE.column_names).cast(_NONE.schema)


def _sealed(entries: pa.Table) -> Iterable[TotalsPart]:
    for row in _summed(entries, ["end_us", "plan", "type"]).to_pylist():
        yield TotalsPart(row["end_us"], row["plan"], row["type"], TotalSums(*(int(row[name]) for name in _NUMBERS)))


def _summed(table: pa.Table, by: list[str]) -> pa.Table:
    sums = table.group_by(by).aggregate([(name, "sum") for name in _NUMBERS])
    return sums.rename_columns([name.removesuffix("_sum") for name in sums.column_names])


def period_totals(
    ends: Ends, live: Iterable[Mapping[str, Any]], sealed: Iterable[TotalsPart], plans: PublishedPlans
) -> dict[str, Any]:
    """The totals of a period as the API shows them: by currency and type, and by currency; never over currencies.

    `live` are rows of the view's rollup, `sealed` the parts from `ArchiveSums` at the gate of the rows' stamp.
    """
    return _totals(ends, map(TotalsPart.live, live), sealed, plans)


def all_totals(
    live: Iterable[Mapping[str, Any]], sealed: Iterable[TotalsPart], plans: PublishedPlans
) -> list[dict[str, Any]]:
    """The totals of all periods, oldest first, in time linear in the rows and periods."""
    cycles = {name: plan.cycle for name, plan in plans.all().items()}
    found: dict[str, tuple[list[TotalsPart], list[TotalsPart]]] = defaultdict(lambda: ([], []))
    first_us: dict[str, int] = {}
    for number, parts in enumerate((map(TotalsPart.live, live), sealed)):
        for part in parts:
            label = plans.get(part.plan).cycle.ending(part.end_us).label
            found[label][number].append(part)
            first_us[label] = min(part.end_us, first_us.get(label, part.end_us))
    labels = sorted(found, key=lambda label: (first_us[label], label))
    return [_totals(Ends.of(label, cycles), *found[label], plans) for label in labels]


def _totals(
    ends: Ends, live: Iterable[TotalsPart], sealed: Iterable[TotalsPart], plans: PublishedPlans
) -> dict[str, Any]:
    live_sums, sealed_sums = (_by_kind(ends, parts, plans) for parts in (live, sealed))
    kinds = sorted({*live_sums, *sealed_sums})
    return {
        "period": ends.label,
        "period_ends": ends.shown(),
        "plans": ends.shown_by_plan(),
        "totals": [
            {
                "currency": kind[0],
                "type": kind[1],
                "quantity": checked(live_sums[kind].quantity + sealed_sums[kind].quantity),
            }
            | _shown(live_sums[kind], sealed_sums[kind])
            for kind in kinds
        ],
        "currencies": [
            {"currency": currency} | _of_currency(_all(live_sums, currency), _all(sealed_sums, currency))
            for currency in sorted({currency for currency, _ in kinds})
        ],
    }


def _by_kind(ends: Ends, parts: Iterable[TotalsPart], plans: PublishedPlans) -> Mapping[tuple[str, str], TotalSums]:
    """The sums of this period's parts, by currency and type."""
    found: dict[tuple[str, str], TotalSums] = defaultdict(TotalSums)
    for part in parts:
        if ends.has(part.plan, part.end_us):
            kind = plans.get(part.plan).currency, part.type
            found[kind] = found[kind].plus(part.sums)
    return found


def _all(sums: Mapping[tuple[str, str], TotalSums], currency: str) -> TotalSums:
    total = TotalSums()
    for (of, _), part in sums.items():
        total = total.plus(part) if of == currency else total
    return total


def _shown(live: TotalSums, sealed: TotalSums) -> dict[str, int]:
    return {
        "events": live.events + sealed.events,
        "amount_micros": checked(live.amount_micros + sealed.amount_micros),
        "open_micros": checked(live.amount_micros),
        "sealed_micros": checked(sealed.amount_micros),
        "charged_micros": checked(sealed.charged_micros),
        "total_micros": checked(live.amount_micros + sealed.charged_micros),
    }


def _of_currency(live: TotalSums, sealed: TotalSums) -> dict[str, int]:
    """The sums over all types, with the documents' rounding added to the charges."""
    charged = sealed._replace(charged_micros=sealed.charged_micros + sealed.rounding_micros)
    return _shown(live, charged) | {"rounding_micros": checked(sealed.rounding_micros)}
