"""Generated events as rows of the journal's schema, each with its append time and its expected fate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.generator.quantities import FEE_KIND, KINDS
from stateside.billing.generator.scenario import FEE, PACKAGE, Ints
from stateside.billing.model import ASSIGN
from stateside.journal import Event
from stateside.journal.columns import GIVEN, encode

BILL, NOTE, DUPLICATE, CLOCK, REFERENCE = "bill", "note", "duplicate", "clock", "reference"

USAGE_FATES: Final = (BILL, NOTE, DUPLICATE)
ROWS: Final = GIVEN.append(pa.field("fate", pa.string(), nullable=False))

_PAYLOAD_ENDS: Final = ("}", "}", "}", f',"name":"{PACKAGE}"}}', "}", f',"name":"{FEE}"}}')


def usage_rows(usage: pa.Table, labels: Sequence[str]) -> pa.Table:
    """Usage as rows; `labels` are the names of the periods, by number."""
    names = pc.binary_join_element_wise("c", _text(usage["customer"]), "")
    periods = pa.array(labels).take(usage["period"])
    ids = pc.binary_join_element_wise("use", names, periods, _text(usage["serial"]), "/")
    fees = pc.binary_join_element_wise("fee", FEE, names, periods, "/")
    payloads = pc.binary_join_element_wise(
        '{"quantity":', _text(usage["quantity"]), pa.array(_PAYLOAD_ENDS).take(usage["kind"]), ""
    )
    columns = {
        "id": pc.if_else(pc.equal(usage["kind"], FEE_KIND), fees, ids),
        "entity": names,
        "type": pa.array(KINDS).take(usage["kind"]),
        "time": usage["time_us"].cast(GIVEN.field("time").type),
        "appended": usage["arrival_us"].cast(GIVEN.field("appended").type),
        "tags": _no_tags(len(usage)),
        "payload": payloads,
        "fate": pa.array(USAGE_FATES).take(usage["fate"]),
    }
    return pa.table(columns).cast(ROWS)


def assignment_rows(customers: Ints, plan: str, effective_us: int, arrival_us: int) -> pa.Table:
    """The assignments of many customers to one plan, all at one moment, with generated holder names."""
    numbers = _text(pa.array(customers))
    names = pc.binary_join_element_wise("c", numbers, "")
    payload = f'{{"plan":"{plan}","effective_us":{effective_us},"holder":"Customer '
    times = pa.array(np.full(len(customers), arrival_us))
    columns = {
        "id": pc.binary_join_element_wise("assign", names, plan, "/"),
        "entity": names,
        "type": pa.array([ASSIGN] * len(customers)),
        "time": times.cast(GIVEN.field("time").type),
        "appended": times.cast(GIVEN.field("appended").type),
        "tags": _no_tags(len(customers)),
        "payload": pc.binary_join_element_wise(payload, numbers, '"}', ""),
        "fate": pa.array([REFERENCE] * len(customers)),
    }
    return pa.table(columns).cast(ROWS)


def event_rows(events: Iterable[tuple[int, Event, str]]) -> pa.Table:
    """Single events with their arrivals and fates as rows."""
    found = list(events)
    batch = encode([event for _, event, _ in found], 0).select(GIVEN.names)
    arrivals = pa.array([arrival_us for arrival_us, _, _ in found], pa.int64()).cast(GIVEN.field("appended").type)
    table = pa.Table.from_batches([batch]).set_column(GIVEN.get_field_index("appended"), "appended", arrivals)
    return table.append_column("fate", pa.array([fate for _, _, fate in found], pa.string())).cast(ROWS)


def _text(numbers: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    return pc.cast(numbers, pa.string())


def _no_tags(count: int) -> pa.Array:
    return pa.array([[]] * count, GIVEN.field("tags").type)
