"""Bills are folded again while they are made and asked for."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from stateside.billing.answers.document_store import DocumentStore
from stateside.billing.audit import audit, live_rows
from stateside.billing.model import assignment, usage
from stateside.billing.operations.delivery import body_of
from stateside.billing.pipeline import app
from stateside.billing.plans.file import plan_event
from stateside.core.layout import Layout
from stateside.core.processes import Child, free_port
from stateside.journal import open_journal
from stateside.pipeline.foreground import LinesForPeople, lead_until
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.testing import run_to
from stateside.views.heartbeat import Heartbeat
from stateside.views.view_generations import drop
from tests.billing.billed import version
from tests.billing.played import append
from tests.billing.story import BATCHES, at
from tests.billing.test_sink import AGAIN, DEAD, DEAD_LAST, dead, told
from tests.serving.conftest import wait_until_it_answers
from tests.sizes import in_full
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(600)]
SETTINGS = RunSettings(batch_interval_ms=50)
EXPECTED = [  # as in `test_sink`, where no batch without data closes January before noah's last call
    ("I-000000001", "invoice", "emma", "2026-01", "EUR", 0, 2, None, [], False, 12),
    ("I-000000002", "invoice", "noah", "2026-01", "USD", 10_000, 1, None, [], False, 12),
    ("I-000000003", "invoice", "olga", "2026-01", "EUR", 20_000, 1, None, ["9"], True, 16),
    ("I-000000004", "invoice", "emma", "2026-02", "EUR", 0, 1, None, [], False, 21),
    ("N-000000001", "debit-note", "noah", "2026-01", "USD", 10_000, 1, "I-000000002", ["13"], False, 14),
    ("N-000000002", "debit-note", "emma", "2026-01", "EUR", 10_000, 1, "I-000000001", ["8"], False, 15),
    ("N-000000003", "debit-note", "olga", "2026-01", "EUR", 10_000, 1, "I-000000003", ["10"], False, 18),
]


class Bills:
    """A folder that is billed, and the story to tell it."""

    def __init__(self, layout: Layout, spark: SparkSession) -> None:
        self.layout, self.spark = layout, spark

    def append(self, number: int) -> None:
        """Append the story's next batch."""
        day, events = BATCHES[number]
        append(self.layout, [(at(day), event) for event in events])

    def tell(self, *numbers: int) -> None:
        """Append some, and wait until the running job has billed them."""
        for number in numbers:
            self.append(number)
        wait_until(self._has_all)

    def _has_all(self) -> bool:
        heartbeat = Heartbeat.load(self.layout.view("bill").heartbeat)
        return heartbeat is not None and heartbeat.state == "idle" and self._position() == self._end()

    def _end(self) -> int:
        return open_journal(self.layout.journal).log().end().one()

    def _position(self) -> int:
        from stateside.core.storage import Storage
        from stateside.spark_state.batch_log import Checkpoint

        checkpoint = Checkpoint(Storage.at(self.layout.view("bill").checkpoint))
        commits = checkpoint.commits()
        return checkpoint.plan(commits[-1]).position.one() if commits else -1

    def delivered(self) -> list[bytes]:
        """All documents, as an endpoint gets them."""
        return [body_of(document) for document in DocumentStore.of(self.layout).after(0, 0)]

    def check(self) -> None:
        """The auditor finds nothing."""
        found = audit(self.layout, live_rows(self.layout), full=True)
        assert found.ok, found.lines()

    @contextmanager
    def applying(self, target: str, *arguments: str) -> Iterator[None]:
        """Apply a change in a process of its own; at the end the change is made."""
        command = [sys.executable, "-m", "stateside", "apply", target, "--dir", str(self.layout.root), "--exit"]
        with subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True) as child:
            try:
                yield
                _, said = child.communicate(timeout=300)
            finally:
                child.kill()
        assert child.returncode == 0 and "is served from now on" in said, said


@pytest.fixture
def bills(layout: Layout, spark: SparkSession) -> Bills:
    return Bills(layout, spark)


@contextmanager
def running(bills: Bills) -> Iterator[threading.Thread]:
    """The job, in a thread of its own; at the end it has handed over."""
    stop, failed = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            with Runner(app, bills.layout, SETTINGS, session=bills.spark) as runner:
                lead_until(runner, bills.layout, stop.is_set, LinesForPeople(io.StringIO()))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join()
    assert failed == []


@contextmanager
def serving(layout: Layout, log: Path, customer: str) -> Iterator[str]:
    port = free_port()
    child = Child([sys.executable, "-m", "stateside", "serve", "--dir", str(layout.root), "--port", str(port)], log)
    try:
        wait_until_it_answers(f"http://127.0.0.1:{port}/v1/customers/{customer}/bill", child)
        yield f"http://127.0.0.1:{port}/v1/customers"
    finally:
        child.stop()


@contextmanager
def asking(url: str) -> Iterator[list[dict[str, Any]]]:
    """Ask for a bill again and again; no answer fails, has fewer documents than the one before, or goes back."""
    answers, ended = list[dict[str, Any]](), threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=60) as client:
            while not ended.wait(0.05):
                answer = client.get(url)
                answers.append(answer.json() | {"status": answer.status_code})

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        ended.set()
        thread.join()
    assert {answer["status"] for answer in answers} == {200}
    seen = [
        (answer["stamp"]["generation"], sum(len(period["documents"]) for period in answer["periods"]))
        for answer in answers
    ]
    assert seen == sorted(seen)


@in_full("test_sink has two generations that seal into one table, tests/e2e/test_change.py the switch")
def test_bills_folded_again_beside_the_running_job_change_no_document(
    bills: Bills, layout: Layout, tmp_path: Path
) -> None:
    """Three invoices and two notes are there before; another note comes while both generations read."""
    with running(bills) as job:
        for numbers in ((0, 1, 2), (3,), (4,), (5,)):
            bills.tell(*numbers)
        before = bills.delivered()
        assert len(before) == 5
        with serving(layout, tmp_path / "serve.log", "emma") as url, asking(f"{url}/emma/bill") as answers:
            with bills.applying("stateside.billing.pipeline:app", "--refold", "bill"):
                wait_until(lambda: bool(layout.filling()))
                bills.append(6)
            assert not job.is_alive() and layout.view("bill").generation == 2
            wait_until(lambda: bool(answers) and answers[-1]["stamp"]["generation"] == 2)
            assert set(before) < set(bills.delivered()) and len(bills.delivered()) == 6
            bills.check()
            drop(layout, "bill")
            bills.append(7)
            run_to(app, layout, bills.spark)
            bills.append(8)
            silver = version("silver", effective_us=at("2026-03-12"))
            added = [
                ("2026-03-11", plan_event(silver, "p3", at("2026-03-11"))),
                ("2026-03-11", assignment("a-ines", "ines", "silver", at("2026-03-12"), at("2026-03-11"))),
                ("2026-03-13", usage("14", "ines", "message", at("2026-03-13"), 10)),
            ]
            append(layout, [(at(day), event) for day, event in added])
            run_to(app, layout, bills.spark)
            bill = wait_until_bill(f"{url}/ines/bill")
            assert [period["amount_micros"] for period in bill["periods"]] == [951_000]
            behind = httpx.get(f"{url}/ines/bill/explain").raise_for_status().json()
            assert [event["id"] for event in behind["events"]] == ["14"]
            bills.check()
    assert told(layout) == EXPECTED and dead(layout) == [*DEAD, *AGAIN, DEAD_LAST]
    assert set(before) < set(bills.delivered())


def wait_until_bill(url: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def has_periods() -> bool:
        found.append(httpx.get(url).raise_for_status().json())
        return bool(found[-1]["periods"])

    wait_until(has_periods)
    return found[-1]
