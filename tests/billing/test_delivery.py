"""Delivery to a real endpoint: each document once, in order, whatever is away or crashes."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stateside.billing.answers.document_store import DocumentStore
from stateside.billing.invoicing.amounts import Amounts
from stateside.billing.invoicing.documents import LATE, corrections, documents_table
from stateside.billing.operations import delivery as delivering
from stateside.billing.operations.delivery import Delivered, DocumentDelivery, body_of, mark_of, only_one, take_over
from stateside.core.errors import PipelineRunning, SinkAway, SinkRefused, StateError
from stateside.core.layout import Layout, ViewGeneration
from stateside.core.processes import Child, free_port
from stateside.pipeline.sinks.http import open_endpoint
from tests.pipeline.sinks.endpoint import Store, endpoint

from .test_totals import FEBRUARY, JANUARY
from .written_bills import WrittenBills, plan


@pytest.fixture
def bills(layout: Layout) -> WrittenBills:
    """Ten invoices for January, of which three are corrected, then ten for February."""
    bills = WrittenBills.begin(layout, plan())
    customers = [f"c{number}" for number in range(10)]
    bills.commit({(who, end, "call", "basic@1"): (120, 1) for who in customers for end in (JANUARY, FEBRUARY)})
    bills.commit(bills.seal(JANUARY))
    late = [(9, "e-1", "c3"), (11, "e-2", "c1"), (12, "e-3", "c7")]
    rows = [
        {
            "offset": offset,
            "id": id_,
            "customer": who,
            "period_end": JANUARY,
            "type": "call",
            "plan": "basic@1",
            "quantity": 60,
        }
        for offset, id_, who in late
    ]
    import pyarrow as pa

    columns = {name: [row[name] for row in rows] for name in LATE.names}
    table = pa.table({**columns, "period_end": pa.array(columns["period_end"], pa.int64())}).cast(LATE)
    bills.issue(corrections(table, documents_table(layout).read(), Amounts(bills.plans)).notes, "N")
    bills.commit(bills.seal(FEBRUARY))
    return bills


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "endpoint.jsonl")


def deliver(layout: Layout, url: str) -> DocumentDelivery:
    return DocumentDelivery(DocumentStore.of(layout), open_endpoint(url, {}), mark_of(layout, "test"))


def numbers(store: Store) -> list[str]:
    return [line["number"] for line in store.lines()]


EXPECTED = [f"I-{n:09}" for n in range(1, 21)] + [f"N-{n:09}" for n in range(1, 4)]


def test_documents_go_in_the_order_of_their_numbers_with_these_as_keys(
    bills: WrittenBills, layout: Layout, store: Store
) -> None:
    with endpoint(store) as url:
        assert deliver(layout, url).step() == 23
        assert deliver(layout, url).step() == 0, "the mark is durable"
    assert numbers(store) == EXPECTED
    assert [headers["idempotency-key"] for headers, _ in store.requests] == EXPECTED
    document = json.loads(store.requests[-1][1])
    assert (document["kind"], document["corrects"], document["event_ids"]) == ("debit-note", "I-000000008", ["e-3"])


def test_it_holds_while_the_endpoint_is_away_and_goes_on_where_it_stood(
    bills: WrittenBills, layout: Layout, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivering, "PAUSE_S_MIN", 0.01)
    with endpoint(store) as url:
        told: list[str] = []
        made = DocumentDelivery(
            DocumentStore.of(layout),
            open_endpoint(url, {}),
            mark_of(layout, "test"),
            told=told.append,
        )
        store.answers += [(503, {}), (500, {}), (429, {})]
        stop = threading.Event()
        runner = threading.Thread(target=made.run, args=(stop.wait,))
        runner.start()
        deadline = time.monotonic() + 90
        while len(numbers(store)) < 23 and time.monotonic() < deadline:
            time.sleep(0.05)
        stop.set()
        runner.join()
    assert numbers(store) == EXPECTED
    assert sum("delivery is held" in text for text in told) == 3
    assert told[-1] == "The endpoint is back: delivery goes on."


def test_a_refused_document_stops_delivery_and_nothing_overtakes_it(
    bills: WrittenBills, layout: Layout, store: Store
) -> None:
    with endpoint(store) as url:
        store.answers += [(422, {})]
        with pytest.raises(SinkRefused, match="refuses I-000000001"):
            deliver(layout, url).step()
        assert numbers(store) == []
        assert deliver(layout, url).step() == 23
    assert numbers(store) == EXPECTED


def test_without_an_endpoint_nothing_is_marked(bills: WrittenBills, layout: Layout) -> None:
    with pytest.raises(SinkAway):
        deliver(layout, f"http://127.0.0.1:{free_port()}/").step()
    assert Delivered.load(mark_of(layout, "test")) == Delivered()


def test_new_documents_are_found_and_old_files_not_read_again(
    bills: WrittenBills, layout: Layout, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stateside.archive.table_reader import DataFile

    with endpoint(store) as url:
        made = deliver(layout, url)
        made.step()
        read: list[Any] = []
        original = DataFile.read

        def noted(self: DataFile, *given: Any) -> Any:
            read.append(self.path)
            return original(self, *given)

        monkeypatch.setattr(DataFile, "read", noted)
        bills.commit({("late", FEBRUARY + 1, "call", "basic@1"): (120, 1)})
        assert made.step() == 0
        assert read == []
        bills.plans["basic@1"] = bills.plans["basic@1"]
        march = bills.plans["basic@1"].cycle.containing(FEBRUARY).end_us
        bills.commit({("c1", march, "call", "basic@1"): (120, 1)})
        bills.commit(bills.seal(march))
        assert made.step() == 1
        assert len(read) == 1
    assert numbers(store) == [*EXPECTED, "I-000000021"]


def test_two_deliveries_of_one_name_are_refused(layout: Layout) -> None:
    mark = mark_of(layout, "test")
    with only_one(mark), pytest.raises(PipelineRunning, match="--name"), only_one(mark):
        pass


def test_the_mark_of_an_earlier_stateside_is_taken_over_whichever_generation_has_it(layout: Layout) -> None:
    for number, notes in ((1, 2), (2, 0)):
        folder = "bill" if number == 1 else f"bill/generations/{number}"
        Delivered(7, notes).save(layout.at("bill", ViewGeneration(number, folder)).mark("delivery-test"))
    take_over(layout, "test")
    take_over(layout, "other")
    assert Delivered.load(mark_of(layout, "test")) == Delivered(7, 2)
    assert Delivered.load(mark_of(layout, "other")) == Delivered()
    Delivered(8, 2).save(mark_of(layout, "test"))
    take_over(layout, "test")
    assert Delivered.load(mark_of(layout, "test")) == Delivered(8, 2)


def test_a_damaged_mark_is_told(layout: Layout) -> None:
    mark = mark_of(layout, "test")
    mark.parent.mkdir(parents=True)
    mark.write_text("{")
    with pytest.raises(StateError, match="under the same keys"):
        Delivered.load(mark)


def test_a_document_s_body_is_the_same_each_time(bills: WrittenBills, layout: Layout) -> None:
    one, other = (next(DocumentStore.of(layout).after(0, 0)) for _ in range(2))
    assert body_of(one) == body_of(other)


@pytest.mark.e2e
def test_a_delivery_that_is_killed_again_and_again_delivers_each_document_once(
    bills: WrittenBills, layout: Layout, store: Store, tmp_path: Path
) -> None:
    """Without the idempotency key, or the mark, a kill between a request and the mark would double or lose some."""
    with endpoint(store) as url:
        command = [sys.executable, "-m", "stateside", "billing", "deliver", "--dir", str(layout.root), "--to", url]
        for kills in range(3):
            child = Child(command, tmp_path / "deliver.log")
            deadline = time.monotonic() + 90
            while len(store.requests) <= kills * 5 and time.monotonic() < deadline:
                time.sleep(0.001)
            os.kill(child.pid, signal.SIGKILL)
            child.stop()
        last = Child([*command, "--once"], tmp_path / "deliver.log")
        deadline = time.monotonic() + 90
        while last.returncode() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert last.returncode() == 0, last.tail()
    assert numbers(store) == EXPECTED
