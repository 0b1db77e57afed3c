"""Queries as readers have them: live and async, from any position, over partitions, old journals, slow readers."""

import asyncio
import shutil
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stateside.core.errors import JournalAway, NotFreshEnough, PositionAhead, RequestInvalid
from stateside.core.positions import Position
from stateside.journal import Event, JournalWriter, Upcasters
from stateside.journal.backends.files import frames
from stateside.journal.backends.files.file_journal import FileJournal
from stateside.journal.queries import FoundEvent, Queries, QueryViews, query_reader
from stateside.journal.queries import entities as entities_module
from tests.journal.old_format import write_old
from tests.journal.queries.streams import MemoryStream, Model
from tests.sizes import examples, not_in_fast


def event(number: int, entity: str = "", tags: tuple[str, ...] = ("t",)) -> Event:
    return Event(f"e{number}", entity or f"c{number % 5}", "call", number, {"n": number}, tags)


@contextmanager
def opened(folder: Path) -> Iterator[tuple[FileJournal, QueryViews, Queries]]:
    stream = FileJournal(folder / "journal")
    with QueryViews(stream, folder / "views") as views:
        yield stream, views, Queries(stream, views)


def test_a_live_query_goes_on_with_what_comes_without_a_gap_or_a_repeat(tmp_path: Path) -> None:
    with opened(tmp_path) as (_, views, queries), JournalWriter(tmp_path / "journal") as writer:
        stop = threading.Event()
        follower = threading.Thread(target=views.keep_following, args=[stop])
        follower.start()
        appender = threading.Thread(target=lambda: [writer.append([event(number)]) for number in range(300)])
        appender.start()
        found = list(islice(queries.tagged("t").live(), 300))
        appender.join()
        assert [each.event.payload["n"] for each in found] == list(range(300))
        rest = queries.tagged("t").live(found[100].position)
        assert list(islice(rest, 199)) == found[101:]
        writer.append([event(300)])
        assert next(rest).event == event(300)
        stop.set()
        follower.join()
        assert list(queries.tagged("t").live(stop=stop)) == []


def test_a_live_query_ends_when_it_is_told_to_stop(tmp_path: Path) -> None:
    with opened(tmp_path) as (_, _, queries), JournalWriter(tmp_path / "journal") as writer:
        writer.append([event(0)])
        stop = threading.Event()
        threading.Timer(0.1, stop.set).start()
        assert [each.event for each in queries.all().live(stop=stop)] == [event(0)]


def test_a_live_query_of_an_entity_ends_with_the_last_sequence_that_was_asked_for(tmp_path: Path) -> None:
    with opened(tmp_path) as (_, views, queries), JournalWriter(tmp_path / "journal") as writer:
        live = queries.entity("emma", 2, 4).live()
        for number in range(6):
            writer.append([event(number, "emma"), event(100 + number, "other")])
            if number == 3:
                views.follow()
        assert [each.event.sequence for each in live] == [2, 3, 4]


def test_entities_come_live_when_they_are_born(tmp_path: Path) -> None:
    with opened(tmp_path) as (_, views, queries), JournalWriter(tmp_path / "journal") as writer:
        live = queries.born().live()
        for number in range(12):
            writer.append([event(2 * number, f"n{number}"), event(2 * number + 1, f"n{number // 2}")])
            assert next(live).entity == f"n{number}"
            if number % 4 == 3:
                views.follow()
        assert [born.entity for born in queries.born("n1").current()] == ["n1", "n10", "n11"]


def test_a_live_query_of_births_says_when_it_would_have_to_remember_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entities_module, "NEW_IDS_MAX", 3)
    with opened(tmp_path) as (_, views, queries), JournalWriter(tmp_path / "journal") as writer:
        writer.append([event(number, f"n{number}") for number in range(5)])
        with pytest.raises(NotFreshEnough, match="keep_following"):
            list(queries.born().current())
        views.follow()
        assert len(list(queries.born().current())) == 5


@pytest.mark.parametrize("followed", [-1, 20, 190])
def test_ids_that_the_views_do_not_have_are_listed_in_order_although_few_are_kept_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, followed: int
) -> None:
    monkeypatch.setattr(entities_module, "TAIL_IDS_MAX", 10)
    monkeypatch.setattr(frames, "GROUP_BYTES", 1)
    names = [f"n{number * 37 % 200:03}" for number in range(200)]
    with opened(tmp_path) as (_, views, queries), JournalWriter(tmp_path / "journal", durability="written") as writer:
        for number, name in enumerate(names):
            writer.append([event(number, name)])
            if number == followed:
                views.follow()
        assert list(queries.entities().current()) == sorted(names)
        assert queries.entities("n1", after="n120").page(7) == [f"n{number}" for number in range(121, 128)]


def test_the_async_forms_give_the_same(tmp_path: Path) -> None:
    with opened(tmp_path) as (_, _, queries), JournalWriter(tmp_path / "journal") as writer:
        writer.append([event(number) for number in range(50)])

        async def read() -> None:
            found = [each async for each in queries.typed("call").current_async()]
            assert found == list(queries.typed("call").current())
            assert [id_ async for id_ in queries.entities().current_async()] == [f"c{n}" for n in range(5)]
            live = queries.typed("call").live_async(found[48].position)
            assert (await anext(live)).event == event(49)
            waiting = asyncio.ensure_future(anext(live))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            writer.append([event(50)])
            assert (await asyncio.wait_for(waiting, 30)).event == event(50)
            waiting = asyncio.ensure_future(anext(live))
            await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        asyncio.run(read())


@settings(max_examples=examples(40, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    entities=st.lists(st.sampled_from([f"c{n}" for n in range(8)]), min_size=1, max_size=60),
    followed=st.integers(0, 60),
    numbering=st.booleans(),
    data=st.data(),
)
def test_over_several_partitions_every_entity_keeps_its_order_and_every_position_resumes(
    tmp_path: Path, entities: list[str], followed: int, numbering: bool, data: st.DataObject
) -> None:
    shutil.rmtree(tmp_path / "views", ignore_errors=True)
    stream, model = MemoryStream(["p-0", "p-1", "p-2"], numbering=numbering), Model()
    events = [event(number, entity, (f"t{number % 2}",)) for number, entity in enumerate(entities)]
    with QueryViews(stream, tmp_path / "views") as views, pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_reader, "PAGE_EVENTS", 4)
        queries = Queries(stream, views)
        for some in (events[:followed], events[followed:]):
            stream.append(some)
            model.append(some)
            if some is not events[followed:]:
                views.follow()
        for entity in set(entities):
            found = [(each.event.sequence, each.event) for each in queries.entity(entity).current()]
            assert found == model.entity(entity)
            assert queries.last_sequence(entity) == len(found)
        tagged = check_resuming(queries.tagged("t1"), data)
        assert sorted(tagged, key=lambda each: each.time_us) == model.tagged("t1")
        assert check_resuming(queries.all(), data) == [each for log in stream.stored.values() for each in log]
        assert len(check_resuming(queries.between(3, 40), data)) == len(model.between(3, 40))
        assert list(queries.entities().current()) == model.entities()
        assert sorted(born.entity for born in queries.born().current()) == model.entities()


def check_resuming(query: Any, data: st.DataObject) -> list[Event]:
    found = list(query.current())
    for at in data.draw(st.sets(st.integers(0, len(found) - 1), max_size=3)) if found else ():
        assert list(query.current(found[at].position)) == found[at + 1 :]
    return [each.event for each in found]


def test_events_that_were_stored_without_a_sequence_get_theirs(tmp_path: Path) -> None:
    write_old(tmp_path / "journal", [[event(0, "emma"), event(1, "tom")], [event(2, "emma")]])
    with opened(tmp_path) as (_, views, queries):
        assert [each.event.sequence for each in queries.entity("emma").current()] == [1, 2]
        with JournalWriter(tmp_path / "journal") as writer:
            writer.append([event(3, "emma")])
        for _ in range(2):
            found = list(queries.entity("emma").current())
            assert [each.event.sequence for each in found] == [1, 2, 3]
            assert list(queries.entity("emma").current(found[0].position)) == found[1:]
            views.follow()


def test_old_events_come_as_their_newest_schema_has_them(tmp_path: Path) -> None:
    upcasters = Upcasters()
    upcasters.register("call", 1, lambda payload: {"number": payload["n"]})
    with opened(tmp_path) as (stream, views, _), JournalWriter(tmp_path / "journal") as writer:
        writer.append([event(7)])
        (found,) = Queries(stream, views, upcasters).all().current()
        assert (found.event.payload, found.event.version) == ({"number": 7}, 2)


@not_in_fast("memory is measured with many events")
def test_a_slow_reader_costs_a_bounded_amount_of_memory_and_holds_no_transaction(tmp_path: Path) -> None:
    with opened(tmp_path) as (_, views, queries), JournalWriter(tmp_path / "journal", durability="written") as writer:
        for first in range(0, 60_000, 2_000):
            writer.append([event(number) for number in range(first, first + 2_000)])
        views.follow()
        list(islice(queries.tagged("t").current(), 10))
        tracemalloc.start()
        try:
            reader = queries.tagged("t").current()
            count = sum(1 for _ in islice(reader, 50_000))
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert count == 50_000
        assert peak_bytes < 12 << 20  # 60,000 events at once would take over 60 MB
        generation = views._current()
        assert generation is not None
        assert "no active readers" in generation.environment.readers()
        assert len(list(reader)) == 10_000


def test_a_position_behind_the_end_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as (_, _, queries), JournalWriter(tmp_path / "journal") as writer:
        writer.append([event(0)])
        for start in (Position.parse("0:2"), Position.parse("other:1")):
            with pytest.raises(PositionAhead):
                queries.all().current(start)


def test_sequences_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as (_, _, queries):
        for low, high in ((0, None), (5, 3)):
            with pytest.raises(RequestInvalid):
                queries.entity("emma", low, high)
        assert list(queries.entity("emma").current()) == []


@pytest.mark.parametrize("others", [2, 1])  # a shorter journal never gets beyond where the query stands
def test_a_live_query_does_not_go_on_in_another_journal(tmp_path: Path, others: int) -> None:
    with opened(tmp_path) as (_, _, queries):
        with JournalWriter(tmp_path / "journal") as writer:
            writer.append([event(0)])
        live, live_async = queries.all().live(), queries.all().live_async()

        async def following() -> FoundEvent:
            return await asyncio.wait_for(anext(live_async), 30)

        with asyncio.Runner() as runner:
            assert next(live).event == runner.run(following()).event == event(0)
            shutil.rmtree(tmp_path / "journal")
            with JournalWriter(tmp_path / "journal") as writer:
                writer.append([event(number + 1) for number in range(others)])
            with pytest.raises(JournalAway, match="another one"):
                next(live)
            with pytest.raises(JournalAway, match="another one"):
                runner.run(following())
