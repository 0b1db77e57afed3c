"""Events over HTTP: durable when answered, each id once, bad ones refused whole."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from stateside.core.errors import EntityElsewhere, EventRefused, IdConflict, JournalAway, TooManyRequests
from stateside.core.layout import Layout
from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.backends.nodes import MergedJournal, Merger, NodeWriter
from stateside.journal.contract import Appended
from stateside.journal.payload import ViewFields, keep_fields
from stateside.serving.changes.feed import Feeds
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web import event_routes as event_routes_module
from stateside.serving.web.event_routes import EVENTS_MAX, Appender, event_routes
from stateside.serving.web.request import Request
from tests.serving.conftest import serving
from tests.written import WORDS, Written


def event(id_: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "entity": "emma", "type": "call", "time": "2026-01-31T12:00:00Z", **more}


async def stored_at(made: Appender, events: Sequence[Event], untimed: Collection[str] = ()) -> list[int]:
    """The offsets at which an append has its events."""
    appended = await made.append(events, untimed)
    assert appended.position.one() == max(appended.place(number).offset for number in range(len(events))) + 1
    return [appended.place(number).offset for number in range(len(events))]


def post(layout: Layout, document: bytes, **headers: str) -> dict[str, Any]:
    """What the handler says to this body."""
    (route,) = event_routes(layout)
    views = ViewReaders(layout)
    request = Request((), (), {}, views, Feeds(views), headers=headers, body=document)
    return dict(asyncio.run(route.handler(request)).document)  # type: ignore[arg-type]


def test_the_trace_of_a_request_is_in_its_events_and_a_repeat_with_another_one_is_the_same_event(
    layout: Layout,
) -> None:
    first, second = (f"00-{number:032x}-00f067aa0ba902b7-01" for number in (1, 2))
    body = json.dumps({"events": [event("a", metadata={"by": "shop"})]}).encode()
    receipts = [post(layout, body, traceparent=trace)["receipt"] for trace in (first, second)]
    assert receipts[0] == receipts[1]
    post(layout, json.dumps({"events": [event("b")]}).encode(), traceparent="garbage")
    stored = [each.metadata for each in FileLog(layout.journal).events()]
    assert stored == [{"traceparent": first, "by": "shop"}, {}]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"events": []}', "1 to 1,000 events"),
        (b'{"events": {}}', "1 to 1,000 events"),
        (b'{"event": []}', "1 to 1,000 events"),
        (b'{"events": [{"id": "a", "entity": "e", "type": "t"}], "more": 1}', "1 to 1,000 events"),
        (b'{"events": [7]}', "Event 0 of the request was refused: it is a JSON int"),
        (b'{"events": [{"entity": "e", "type": "t"}]}', "it has no id"),
        (b'{"events": [{"id": "a", "entity": "e", "type": "t"}, {"id": "b", "type": "t"}]}', "Event 1 .* no entity"),
        (b'{"events": [{"id": "a", "entity": "e", "type": "t", "tiem": 1}]}', "'tiem'"),
        (b'{"events": [{"id": "", "entity": "e", "type": "t"}]}', "its id has 0 characters"),
        (b'{"events": [{"id": "a", "entity": "e", "type": "t", "time": "yesterday"}]}', "yesterday"),
    ],
)
def test_a_request_with_anything_bad_in_it_stores_nothing(layout: Layout, body: bytes, why: str) -> None:
    with pytest.raises(EventRefused, match=why):
        post(layout, body)
    assert FileLog(layout.journal).end()["0"] == 0


READINGS = ViewFields("site string, value double", pa.schema([("site", pa.string()), ("value", pa.float64())]))


def test_a_payload_that_does_not_fit_the_declared_fields_is_refused_and_the_field_named(layout: Layout) -> None:
    events = [event("a", payload={"site": "north"}), event("b", payload={"site": "north", "value": "hot"})]
    body = json.dumps({"events": events}).encode()
    keep_fields(layout.fields, {"hourly": READINGS})
    with pytest.raises(
        EventRefused, match=r"Event 1 of the request, 'b', .* the field 'value' is \"hot\", .* no double"
    ):
        post(layout, body)
    assert FileLog(layout.journal).end()["0"] == 0
    keep_fields(layout.fields, {"hourly": replace(READINGS, types=("reading",))})
    assert len(post(layout, body)["receipts"]) == 2  # no view reads events of this type


def test_an_exported_event_is_taken_with_all_its_fields(layout: Layout) -> None:
    more = {"version": 2, "metadata": {"trace": "x"}, "extra": {"n": 1}, "sequence": 7, "appended_us": 8}
    post(layout, json.dumps({"events": [event("a", payload={}, **more), event("b", data="/w==")]}).encode())
    first, second = FileLog(layout.journal).events()
    assert (first.version, first.metadata, first.extra, first.sequence) == (2, {"trace": "x"}, {"n": 1}, 1)
    assert (second.payload, second.sequence) == (b"\xff", 2)


def test_too_many_wait_and_the_next_is_told_to_come_again(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_routes_module, "WAITING_EVENTS_MAX", 3)
    made = Appender(layout)

    async def go() -> None:
        with pytest.raises(TooManyRequests) as refused:
            await made.append([Event(str(number), "e", "t", 1, {}) for number in range(4)])
        assert refused.value.retry_after_s >= 1
        assert await stored_at(made, [Event("a", "e", "t", 1, {})]) == [0]

    asyncio.run(go())


def test_requests_at_the_same_time_are_appended_together_and_each_gets_its_own_answer(layout: Layout) -> None:
    made = Appender(layout)

    async def go() -> list[list[int]]:
        wanted = [[Event(f"{n}-{m}", "e", "t", 1, {}) for m in range(n % 3 + 1)] for n in range(50)]
        return await asyncio.gather(*(stored_at(made, events) for events in wanted))

    answers = asyncio.run(go())
    ids = [each.id for each in FileLog(layout.journal).events()]
    assert [[ids[offset] for offset in answer] for answer in answers] == [
        [f"{n}-{m}" for m in range(n % 3 + 1)] for n in range(50)
    ]
    assert len(list(FileLog(layout.journal).batches(0, len(ids)))) < 50, "one sync for several requests"


def test_a_stored_id_with_other_content_is_a_conflict_of_its_own_request_alone(layout: Layout) -> None:
    made = Appender(layout)

    async def go() -> None:
        first, other = Event("a", "e", "t", 1, {}), Event("a", "e", "t", 1, {"n": 1})
        assert await stored_at(made, [first]) == [0]
        requests = [[Event("b", "e", "t", 1, {})], [Event("c", "e", "t", 1, {}), other], [first], [other]]
        told = await asyncio.gather(*(stored_at(made, events) for events in requests), return_exceptions=True)
        assert [told[0], told[2]] == [[1], [0]]
        for conflict, number in ((told[1], 1), (told[3], 0)):
            assert isinstance(conflict, IdConflict)
            assert (conflict.ids, conflict.events) == (("a",), (number,))

    asyncio.run(go())
    assert [each.id for each in FileLog(layout.journal).events()] == ["a", "b"]


def test_a_folder_of_nodes_takes_events_beside_a_node_that_goes_on(layout: Layout) -> None:
    with NodeWriter(layout.journal, "hamburg") as hamburg:
        hamburg.append([Event("h-1", "hugo", "call", 1, {})])
        for number in (1, 2):
            found = post(layout, json.dumps({"events": [event(f"e-{number}"), event(f"e-{number}")]}).encode())
            assert [str(receipt) for receipt in found["receipts"]] == [f"shared.1:{number}"] * 2
            hamburg.append([Event(f"h-{number + 1}", "hugo", "call", 1, {})])
        again = post(layout, json.dumps({"events": [event("e-1"), event("e-3")]}).encode())
        assert [str(receipt) for receipt in again["receipts"]] == ["shared.1:1", "shared.1:3"]
        with pytest.raises(IdConflict, match="'e-1'"):
            post(layout, json.dumps({"events": [event("e-4"), event("e-1", tags=["night"])]}).encode())
    with Merger(layout.journal, partitions=2) as merger:
        merger.merge()
    stream = MergedJournal(layout.journal)
    merged = sorted((each.entity, each.sequence, each.id) for each in stream.events())
    assert merged == [(who, n, f"{who[0]}-{n}") for who in ("emma", "hugo") for n in (1, 2, 3)]
    assert stream.covers(again["receipt"])


def test_an_entity_of_another_node_is_refused_and_the_writer_goes_on(layout: Layout) -> None:
    made = Appender(layout)
    hugo, emma = Event("h-1", "hugo", "call", 1, {}), Event("e-1", "emma", "call", 1, {})

    async def go() -> None:
        with NodeWriter(layout.journal, "hamburg") as hamburg:
            hamburg.append([hugo])
            requests = made.append([emma, replace(hugo, id="h-2")]), made.append([emma])
            refused, stored = await asyncio.gather(*requests, return_exceptions=True)
            assert isinstance(refused, EntityElsewhere) and "by the node hamburg" in str(refused)
            assert isinstance(stored, Appended) and str(stored.position) == "shared.1:1"
            writer = made._writer
            with pytest.raises(EntityElsewhere):
                await made.append([hugo])
            assert made._writer is writer is not None
            hamburg.release(hamburg.slots)
            moved = await made.append([replace(hugo, id="h-2"), hugo])
            assert str(moved.position) == "hamburg.1:1,shared.1:2", "the first one is at the node that stored it"

    asyncio.run(go())


def test_nodes_whose_disk_is_away_do_not_become_new_ones(layout: Layout) -> None:
    with NodeWriter(layout.journal, "hamburg"):
        pass
    made, away = Appender(layout), layout.root / "away"

    async def go() -> None:
        await made.append([Event("a", "emma", "call", 1, {})])
        layout.journal.rename(away)
        layout.journal.mkdir()
        for _ in range(2):
            with pytest.raises(JournalAway):
                await made.append([Event("b", "emma", "call", 1, {})])
        assert list(layout.journal.iterdir()) == []
        layout.journal.rmdir()
        away.rename(layout.journal)
        assert str((await made.append([Event("b", "emma", "call", 1, {})])).position) == "shared.1:2"

    asyncio.run(go())


def test_the_receipt_of_a_request_covers_new_and_repeated_events(layout: Layout) -> None:
    def answer(*ids: str) -> dict[str, str | list[str]]:
        found = post(layout, json.dumps({"events": [event(id_) for id_ in ids]}).encode())
        return {"receipt": str(found["receipt"]), "receipts": [str(receipt) for receipt in found["receipts"]]}

    assert answer("a", "b") == {"receipt": "0:2", "receipts": ["0:1", "0:2"]}
    assert answer("b", "c", "a") == {"receipt": "0:3", "receipts": ["0:2", "0:3", "0:1"]}
    assert answer("b", "a") == {"receipt": "0:2", "receipts": ["0:2", "0:1"]}


def test_a_request_without_times_may_be_sent_again(layout: Layout) -> None:
    body = b'{"events": [{"id": "a", "entity": "e", "type": "t"}]}'
    assert post(layout, body) == post(layout, body)


def test_a_time_that_is_given_is_compared_whoever_gives_none_for_the_same_id(layout: Layout) -> None:
    made = Appender(layout)

    async def go() -> list[Any]:
        await made.append([Event("a", "e", "t", 5, {})])
        requests = stored_at(made, [Event("a", "e", "t", 7, {})], {"a"}), made.append([Event("a", "e", "t", 6, {})])
        return list(await asyncio.gather(*requests, return_exceptions=True))

    untimed, timed = asyncio.run(go())
    assert untimed == [0]
    assert isinstance(timed, IdConflict)
    with pytest.raises(IdConflict, match="twice in one append"):
        post(layout, b'{"events": [{"id":"b","entity":"e","type":"t"},{"id":"b","entity":"e","type":"t","time_us":5}]}')


def test_an_error_of_the_journal_is_told_to_all_who_wait_and_the_next_is_tried_anew(layout: Layout) -> None:
    layout.root.mkdir(parents=True)
    layout.journal.write_text("a file where the folder should be")
    made = Appender(layout)

    async def go() -> None:
        one = Event("a", "e", "t", 1, {})
        failed = await asyncio.gather(made.append([one]), made.append([one]), return_exceptions=True)
        assert all("cannot be written" in str(error) for error in failed)
        layout.journal.unlink()
        assert await stored_at(made, [one]) == [0]

    asyncio.run(go())


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_failed_append_fails_no_request_that_was_queued_after_it(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """Also if the writer that replaced the failed one fails for another request, and is replaced in its turn."""
    made, sync, queued, left = Appender(layout), os.fdatasync, threading.Event(), list(range(failures))

    def failing(handle: int) -> None:
        if left and threading.current_thread().name == "group commit":  # not in the thread that opens a writer
            queued.wait(10)
            left.pop()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(handle)

    async def go() -> list[Any]:
        await made.append([Event("first", "e", "t", 1, {})])
        monkeypatch.setattr(os, "fdatasync", failing)
        requests = [asyncio.create_task(made.append([Event("a", "e", "t", 1, {})]))]
        await asyncio.sleep(0.1)  # the sync has begun
        requests += [asyncio.create_task(made.append([Event(f"b{n}", "e", "t", 1, {})])) for n in range(5)]
        await asyncio.sleep(0)
        queued.set()
        return list(await asyncio.gather(*requests, return_exceptions=True))

    answers = asyncio.run(go())
    failed = [error for error in answers if isinstance(error, Exception)]
    assert all(isinstance(error, JournalAway) and "failed to sync" in str(error) for error in failed)
    assert len(failed) == failures - len(left) >= min(failures, 2), "each failure costs one request its answer"
    assert answers[0] is failed[0]
    stored = {each.id for each in FileLog(layout.journal).events()}
    assert {f"b{n}" for n, answer in enumerate(answers[1:]) if not isinstance(answer, Exception)} <= stored


@pytest.mark.parametrize("known_by", ["note", "checkpoint"])
@pytest.mark.parametrize("left", ["nothing", "an empty folder", "another journal"])
def test_a_server_started_while_the_journal_is_away_makes_no_new_one_if_views_have_read_it(
    layout: Layout, left: str, known_by: str
) -> None:
    one, away = Event("a", "e", "t", 1, {}), layout.root / "away"
    with JournalWriter(layout.journal) as writer:
        writer.append([one])
    view = layout.view("words")
    view.root.mkdir(parents=True)
    read = FileLog(layout.journal).id() or ""
    if known_by == "note":
        view.journal_note.write_text(read)
    else:  # of 0.1.0, or the runner was killed before its next heartbeat
        Written(view.checkpoint, WORDS).batch([], source=json.dumps({"journal": read, "0": 1}))
    view.catalogue.write_text("{}")
    layout.journal.rename(away)
    if left != "nothing":
        layout.journal.mkdir()
    if left == "another journal":
        with JournalWriter(layout.journal) as writer:
            writer.append([Event("x", "e", "t", 1, {})])
    made = Appender(layout)

    async def go() -> None:
        with pytest.raises(JournalAway):
            await made.append([Event("b", "e", "t", 1, {})])
        assert list(layout.journal.glob("*.segment")) == [] or left == "another journal"
        shutil.rmtree(layout.journal, ignore_errors=True)
        away.rename(layout.journal)
        assert await stored_at(made, [one, Event("b", "e", "t", 1, {})]) == [0, 1]

    asyncio.run(go())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return Layout(tmp_path_factory.mktemp("application"))


@pytest.fixture(scope="module")
def url(folder: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from serving(folder, Path(tmp_path_factory.mktemp("logs")) / "server.log", "/healthz")


@pytest.mark.e2e
class TestOverHttp:
    def test_what_is_answered_is_durable_and_may_be_sent_again(self, url: str, folder: Layout) -> None:
        body = {"events": [event("a", payload={"seconds": 61}), event("b", tags=["night"])]}
        first = httpx.post(f"{url}/v1/events", json=body)
        assert first.status_code == 200, first.text
        receipts = first.json()["receipts"]
        assert first.json()["receipt"] == receipts[1]
        assert httpx.post(f"{url}/v1/events", json=body).json() == first.json()
        found = [each for each in FileLog(folder.journal).events() if each.id in ("a", "b")]
        assert [(each.payload, each.tags) for each in found] == [({"seconds": 61}, ()), ({}, ("night",))]

    def test_many_clients_that_repeat_themselves_store_each_event_once(self, url: str, folder: Layout) -> None:
        def send(number: int) -> str:
            events = [event(f"many-{number % 10}-{part}") for part in range(20)]
            answer = httpx.post(f"{url}/v1/events", json={"events": events}, timeout=60)
            assert answer.status_code == 200, answer.text
            return str(answer.json())

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(send, range(40)))
        assert len(set(answers)) == 10
        ids = [each.id for each in FileLog(folder.journal).events() if each.id.startswith("many-")]
        assert len(ids) == len(set(ids)) == 200

    def test_another_event_under_a_stored_id_is_a_problem_document_that_names_it(self, url: str) -> None:
        for more, status in (({}, 200), ({}, 200), ({"payload": {"seconds": 1}}, 409)):
            got = httpx.post(f"{url}/v1/events", json={"events": [event("conflicting", **more)]})
            assert got.status_code == status
        assert got.json()["type"] == "urn:stateside:problem:id-conflict"
        assert (got.json()["ids"], got.json()["events"]) == (["conflicting"], [0])

    @pytest.mark.parametrize(
        ("content", "status", "code"),
        [
            (b"", 400, "request-invalid"),
            (b"[]", 400, "request-invalid"),
            (b'{"events": [', 400, "request-invalid"),
            (b'{"events": [{}]}', 400, "event-refused"),
            (b"x" * (5 << 20), 413, "body-too-large"),
        ],
    )
    def test_a_bad_body_is_a_problem_document(self, url: str, content: bytes, status: int, code: str) -> None:
        answer = httpx.post(f"{url}/v1/events", content=content, timeout=60)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == f"urn:stateside:problem:{code}"

    def test_a_payload_that_does_not_fit_is_a_problem_document(self, url: str, folder: Layout) -> None:
        keep_fields(folder.fields, {"hourly": READINGS})
        try:
            answer = httpx.post(f"{url}/v1/events", json={"events": [event("misfit", payload={"site": 7})]})
        finally:
            folder.fields.unlink()
        assert (answer.status_code, answer.json()["type"]) == (400, "urn:stateside:problem:event-refused")
        assert "the field 'site' is 7, which is no string" in answer.json()["detail"]

    def test_other_methods_and_more_events_than_allowed_are_refused(self, url: str) -> None:
        assert httpx.get(f"{url}/v1/events").status_code == 405
        events = [event(str(number)) for number in range(EVENTS_MAX + 1)]
        assert httpx.post(f"{url}/v1/events", json={"events": events}).status_code == 400


@pytest.mark.e2e
def test_workers_of_a_server_and_another_node_write_one_folder_of_nodes(tmp_path: Path) -> None:
    """Two worker processes share a node; each entity's events, sent one after the other, keep their order."""
    folder = Layout(tmp_path / "shop")
    with NodeWriter(folder.journal, "hamburg") as hamburg:
        hamburg.append([Event("h-0", "hugo", "call", 1, {})])
        with contextmanager(serving)(folder, tmp_path / "server.log", "/healthz", "--workers", "2") as url:

            def send(entity: str) -> list[str]:
                bodies = [{"events": [event(f"{entity}-{number}", entity=entity)]} for number in range(20)]
                answers = [httpx.post(f"{url}/v1/events", json=body, timeout=60) for body in bodies * 2]
                assert {answer.status_code for answer in answers} == {200}, answers[0].text
                receipts = [answer.json()["receipt"] for answer in answers]
                assert receipts[:20] == receipts[20:], "a connection each, so either worker may answer"
                return receipts[:20]

            with ThreadPoolExecutor(4) as pool:
                sent = pool.map(send, [f"e{number}" for number in range(8)])
                for number in range(1, 20):
                    hamburg.append([Event(f"h-{number}", "hugo", "call", 1, {})])
                receipts = [receipt for found in sent for receipt in found]
            refused = httpx.post(f"{url}/v1/events", json={"events": [event("x", entity="hugo")]})
            assert (refused.status_code, refused.json()["type"]) == (409, "urn:stateside:problem:entity-elsewhere")
    assert len(set(receipts)) == 160
    with Merger(folder.journal, partitions=2) as merger:
        merger.merge()
    order: dict[str, list[str]] = {}
    for each in MergedJournal(folder.journal).events():
        order.setdefault(each.entity, []).append(each.id)
        assert each.sequence == len(order[each.entity])
    expected = {f"e{n}": [f"e{n}-{number}" for number in range(20)] for n in range(8)}
    assert order == expected | {"hugo": [f"h-{number}" for number in range(20)]}
