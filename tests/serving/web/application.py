"""An application's folder as Spark leaves it, made without Spark: a view `orders`, and a journal of three events."""

from __future__ import annotations

from stateside.core.layout import Layout
from stateside.core.storage import Storage, write_atomically
from stateside.journal import Event, JournalWriter
from stateside.views.inference import infer
from tests.written import Written, WrittenOperator

ORDERS = WrittenOperator([("customer", "string"), ("year", "integer")], [("count", "long"), ("sum", "long")])


def make_application(layout: Layout, bens_total: int = 9) -> None:
    """Rows of emma, and one of ben with this total."""
    view = layout.view("orders")
    written = Written(view.checkpoint, ORDERS)
    written.batch([(["emma", 2026], [1, 5]), (["emma", 2025], [1, 7]), (["ben", 2026], [1, bens_total])])
    inferred = infer(Storage.at(view.checkpoint), "orders")
    assert inferred is not None
    write_atomically(view.catalogue, inferred.views[0].as_json())
    with JournalWriter(layout.journal) as writer:
        writer.append([Event(str(number), "emma", "order", 0, {}) for number in range(3)])
