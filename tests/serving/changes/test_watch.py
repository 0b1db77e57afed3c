"""Watching a view: whoever starts, drops and comes back at any moment has exactly the state of what it is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stateside.core.errors import AccessDenied, HistoryGone, KeyInvalid, Misdirected, RequestInvalid
from stateside.replica.history import Keep
from stateside.serving.access.principal import Principal
from stateside.serving.changes import feed, subscription
from stateside.serving.changes import watch as watch_module
from stateside.serving.changes.sse import EventId
from stateside.serving.rows.floor import Floor
from tests.serving.changes.room import (
    OF_A_KIND,
    OF_AN_ACCOUNT,
    OF_THREES,
    PERIOD,
    QUESTIONS,
    ROWS_KEY,
    Asked,
    Client,
    Room,
    in_a_room,
)
from tests.serving.changes.watched import VIEW, Follower, Key, Mover, events, parsed
from tests.sizes import examples, not_in_fast

accounts = st.tuples(st.integers(0, 2), st.sampled_from(["call", "data"]))
batches = st.dictionaries(accounts, st.none() | st.integers(0, 3), max_size=4)
steps = st.lists(st.tuples(batches, st.sets(st.integers(0, 2)), st.booleans(), st.booleans()), min_size=2, max_size=10)
Step = tuple[dict[Key, int | None], set[int], bool, bool]
LIMITS = [{}, {"PAGE_ROWS_MAX": 1}, {"STEP_ROWS_MAX": 1}, {"STEP_BATCHES_MAX": 1}, {"FEED_ROWS_MAX": 2}]


@not_in_fast("a property; one that drops once is here")
@settings(max_examples=examples(30, 400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(QUESTIONS), min_size=3, max_size=3), steps, st.sampled_from(LIMITS))
def test_a_watcher_that_drops_and_comes_back_at_any_moment_has_the_state_of_every_batch(
    mover: Mover, asked: list[Asked], told: list[Step], limit: dict[str, float]
) -> None:
    """Batches come while watchers start, drop and resume, the server restarts, and the limits are very small."""

    async def run(room: Room) -> None:
        clients = [Client(room, each) for each in asked]
        for changes, toggled, pause, restart in told:
            if restart:
                for client in clients:
                    await client.drop()
                room.stop()
                await room.settle()
                room.close()
                room.start()
            for number in toggled:
                if clients[number].there:
                    await clients[number].drop()
                else:
                    clients[number].connect()
            await asyncio.to_thread(room.apply, changes)
            await asyncio.sleep(0.01 if pause else 0)
        for value in (98, 3):  # the last batch is one that everybody is told of
            everything: dict[tuple[int, str], int | None] = {
                (account, kind): value for account in range(3) for kind in ("call", "data")
            }
            await asyncio.to_thread(room.apply, everything)
        for client in clients:
            if not client.there:
                client.connect()
        for client in clients:
            await client.told_up_to(len(room.states) - 1)
            client.check()
            await client.drop()
        await room.settle()

    in_a_room(mover, run, limit)


# One after the other


def test_rows_come_first_and_then_every_batch_with_the_id_to_go_on_from(mover: Mover) -> None:
    async def run(room: Room) -> None:
        client = Client(room, QUESTIONS[0])
        client.connect()
        await client.told_up_to(0)
        batches: list[dict[tuple[int, str], int | None]] = [{(1, "call"): 5}, {(1, "data"): None}, {(7, "call"): 1}]
        for number, changes in enumerate(batches, 1):
            room.apply(changes)
            await client.told_up_to(number)
        client.check()
        first, *others = client.follower.told
        assert (first.kind, first.id, first.data["last"]) == ("snapshot", "0-run__000", True)
        assert [(told.kind, told.id) for told in others] == [("changes", f"{n}-run__00{n}") for n in (1, 2, 3)]
        assert others[0].data["changed"] == [
            {"account": 1, "period": PERIOD, "kind": "call", "count": 1, "sum": 5},
        ]
        assert others[1].data["removed"] == [{"account": 1, "period": PERIOD, "kind": "data"}]
        assert others[1].data["stamp"]["position"] == "0:20"
        await client.drop()
        await room.settle()

    in_a_room(mover, run)


def test_who_is_far_behind_is_told_all_batches_in_one(mover: Mover) -> None:
    async def run(room: Room) -> None:
        client = Client(room, Asked(("1",)))
        client.connect()
        await client.told_up_to(0)
        await client.drop()
        for number in range(subscription.STEP_BATCHES_MAX + 1):
            room.apply({(1, "call"): 100 + number})
        client.connect()
        await client.told_up_to(len(room.states) - 1)
        last = client.follower.told[-1]
        assert (len(client.follower.told), last.data["after"], len(last.data["changed"])) == (2, 0, 1)
        client.check()
        await client.drop()
        await room.settle()

    in_a_room(mover, run)


def test_who_reads_too_slowly_is_cut_off_with_the_reason_and_goes_on_without_loss(mover: Mover) -> None:
    async def run(room: Room) -> None:
        quick, slow, follower = Client(room, QUESTIONS[0]), room.watch(), Follower(ROWS_KEY)
        quick.connect()
        heard = events(slow.parts(await slow.begin(None, Floor())))
        follower.hear(await anext(heard))
        hearing = asyncio.ensure_future(anext(heard))
        await room.joined(2)
        for number in range(7):
            room.apply({(1, "call"): 1_000 + number})
            await quick.told_up_to(number + 1)  # is not held up
        follower.hear(await hearing)
        left = [told async for told in heard]
        assert [told.kind for told in left] == ["cut"], "what waited is dropped"
        assert (left[0].data["reason"], "3 events" in left[0].data["detail"]) == ("slow", True)
        again = room.watch()
        parts = again.parts(await again.begin(EventId.parse(follower.id or ""), Floor()))
        async for told in events(parts):
            follower.hear(told)
            if 7 in follower.at:
                break
        await parts.aclose()
        assert [told.kind for told in follower.told] == ["snapshot", *["changes"] * 7]
        assert follower.rows == quick.follower.rows
        await quick.drop()
        await room.settle()

    in_a_room(mover, run, {"QUEUE_EVENTS_MAX": 3})


def test_what_waits_for_a_watcher_is_bounded_in_bytes_too(mover: Mover) -> None:
    async def run(room: Room) -> None:
        quick, watch = Client(room, QUESTIONS[0]), room.watch()
        quick.connect()
        heard = events(watch.parts(await watch.begin(None, Floor())))
        assert (await anext(heard)).kind == "snapshot"
        hearing = asyncio.ensure_future(anext(heard))
        await room.joined(2)
        for number in range(5):
            room.apply({(1, "call"): 1_000 + number})
            await quick.told_up_to(number + 1)
        assert (await hearing).kind == "changes"
        assert [told.kind async for told in heard] == ["cut"]
        await quick.drop()
        await room.settle()

    in_a_room(mover, run, {"QUEUE_BYTES_MAX": 700})


# Where it cannot go on


def test_where_the_history_is_gone_a_watcher_is_told_to_begin_anew(mover: Mover) -> None:
    async def run(room: Room) -> None:
        client = Client(room, QUESTIONS[0])
        client.connect()
        await client.told_up_to(0)
        await client.drop()
        await room.settle()
        mover.forget(room.layout)
        for number in range(2):
            room.apply({(1, "call"): number}, Keep(seconds=0))
        client.connect()
        await client.told_up_to(2)
        assert [told.kind for told in client.follower.told] == ["snapshot", "reset", "snapshot"]
        assert client.follower.told[1].data["reason"] == "history-gone"
        with pytest.raises(HistoryGone):
            await room.watch().once(EventId(0, "run__000"), Floor())
        client.check()
        await client.drop()
        await room.settle()

    in_a_room(mover, run)


def test_after_a_rollback_every_watcher_is_told_to_begin_anew(mover: Mover) -> None:
    """Also those who are there: the batch of the same number is another one now."""

    async def run(room: Room) -> None:
        room.apply({(1, "call"): 7})
        live, away, total = Client(room, QUESTIONS[0]), Client(room, QUESTIONS[0]), Client(room, Asked(rollup=()))
        for client in (live, away, total):
            client.connect()
            await client.told_up_to(1)
        await away.drop()
        mover.load(room.layout, 1, {(1, "call"): 8}, "other")
        mover.apply(room.layout, 2, {(2, "call"): 9}, "other")
        away.connect()
        for client in (live, away, total):
            await client.told_up_to(2)
            assert [told.kind for told in client.follower.told][:3] == ["snapshot", "reset", "snapshot"]
            await client.drop()
        for client in (live, away):
            assert {key: row["sum"] for key, row in client.follower.rows.items()} == {(1, "call"): 8, (2, "call"): 9}
        assert total.follower.rows[()]["sum"] == 17
        await room.settle()

    in_a_room(mover, run)


def test_a_batch_that_does_not_come_in_time_is_taken_for_gone(mover: Mover) -> None:
    async def run(room: Room) -> None:
        begun = await room.watch().begin(EventId(5, "run__005"), Floor(wait_ms=20))
        assert "stands at batch 0, and batch 5 was asked for" in str(begun.gone)
        waiting = asyncio.create_task(room.watch().begin(EventId(1, "run__001"), Floor(wait_ms=5_000)))
        await asyncio.sleep(0.05)
        room.apply({})
        begun = await waiting
        assert (begun.gone, begun.stand is not None) == (None, True)

    in_a_room(mover, run)


def test_a_server_that_stops_ends_its_streams_with_a_word(mover: Mover) -> None:
    async def run(room: Room) -> None:
        watches = [room.watch(each) for each in QUESTIONS[:3]]
        heard = [events(watch.parts(await watch.begin(None, Floor()))) for watch in watches]
        for each in heard[:2]:
            assert (await anext(each)).kind == "snapshot"
        hearing = asyncio.ensure_future(anext(heard[0]))
        polled = asyncio.create_task(room.watch().once(EventId(0, "run__000"), Floor(wait_ms=20_000)))
        await room.joined(2)
        room.stop()
        told = await hearing
        assert (told.kind, told.data["reason"]) == ("end", "stopping")
        assert [told.kind async for told in heard[1]] == ["end"]
        assert [told.kind async for told in heard[2]] == ["snapshot", "end"], "who came last hears it too"
        answer = await asyncio.wait_for(polled, 5)
        assert (answer.batch.batch, answer.event(room.watch().question).count(b"account")) == (0, 0)
        await room.settle()

    in_a_room(mover, run)


def test_one_to_whom_nothing_happens_hears_that_the_server_lives_and_how_far_it_is(
    mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(room: Room) -> None:
        watch = room.watch(Asked(("1",)))
        parts = watch.parts(await watch.begin(None, Floor()))
        assert (await anext(parts)).startswith(b"retry: ")
        assert b"event: snapshot" in await anext(parts)
        assert await anext(parts) == b": batch 0\n\n"
        room.apply({(2, "call"): 1})
        while (part := await anext(parts)).startswith(b":"):
            pass
        (told,) = parsed(part)
        assert (told.kind, told.id, told.data["changed"], told.data["after"]) == ("changes", "1-run__001", [], 0)
        await parts.aclose()
        await room.settle()

    monkeypatch.setattr(feed, "_ALIVE_LOOK_S", 0.0)
    in_a_room(mover, run, {"KEEP_ALIVE_S": 0.05})


# Once


def test_a_long_poll_waits_for_a_change_and_answers_with_nothing_if_none_comes(mover: Mover) -> None:
    async def run(room: Room) -> None:
        watch = room.watch(Asked(("1",)))
        rows = await watch.once(None, Floor())
        assert [told.data["rows"][0]["account"] for told in parsed(rows.event(watch.question))] == [1]
        waiting = asyncio.create_task(watch.once(EventId.of(rows.batch), Floor(wait_ms=10_000)))
        await asyncio.sleep(0.03)
        room.apply({(2, "call"): 1})
        room.apply({(1, "call"): 42})
        (told,) = parsed((await waiting).event(watch.question))
        assert ([row["sum"] for row in told.data["changed"]], told.data["after"], told.id) == ([42], 0, "2-run__002")
        nothing = await watch.once(EventId(2, "run__002"), Floor(wait_ms=30))
        (told,) = parsed(nothing.event(watch.question))
        assert (nothing.batch.batch, told.data["changed"]) == (2, [])
        await room.settle()

    in_a_room(mover, run)


def test_more_than_fits_into_one_answer_is_refused_with_what_to_do(
    mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(room: Room) -> None:
        with pytest.raises(KeyInvalid, match="event-stream"):
            await room.watch().once(None, Floor())
        room.apply({(n, "call"): n for n in range(5, 9)})
        with pytest.raises(KeyInvalid, match="More than 2 rows changed"):
            await room.watch().once(EventId(0, "run__000"), Floor())

    monkeypatch.setattr(watch_module, "ROWS_MAX", 2)
    in_a_room(mover, run, {"PAGE_ROWS_MAX": 1})


# Whose rows


def test_another_s_key_and_a_rollup_over_others_are_refused(mover: Mover) -> None:
    async def run(room: Room) -> None:
        for asked in (
            Asked(("2",), holder=OF_AN_ACCOUNT),
            Asked(("1", PERIOD, "data"), holder=OF_A_KIND),
            Asked(rollup=("kind",), holder=OF_AN_ACCOUNT),
            Asked(rollup=(), holder=OF_AN_ACCOUNT),
            Asked(("2",), rollup=("account",), holder=OF_AN_ACCOUNT),
            Asked(holder=Principal("other", frozenset({"read"}), views=frozenset({"bill"}))),
            Asked(holder=Principal("other", frozenset({"read"}), where={"customer": "emma"})),
        ):
            with pytest.raises(AccessDenied):
                room.watch(asked)
        assert room.watch(Asked(("01",), holder=OF_AN_ACCOUNT)), "it is the value that counts"
        with pytest.raises(KeyInvalid):
            room.watch(Asked(("one",)))
        with pytest.raises(RequestInvalid):
            room.watch(Asked(rollup=("colour",)))
        with pytest.raises(RequestInvalid, match="has no rollup"):
            await room.watch(Asked(rollup=("kind", "account"))).begin(None, Floor())

    in_a_room(mover, run)


def test_a_key_of_another_share_is_refused_with_its_place_and_rollups_are_the_share_s(mover: Mover) -> None:
    async def run(room: Room) -> None:
        reader = room.views.get(VIEW)
        stamp = replace(await reader.stamp(), share="1/2")

        def held(asked: Asked) -> bool:
            try:
                room.watch(asked).question.check_held(stamp)
            except Misdirected:
                return False
            return True

        assert {held(Asked((f"{number}",))) for number in range(20)} == {True, False}
        assert held(Asked())
        assert held(Asked(("call",), rollup=("kind",)))

    in_a_room(mover, run)


def test_a_row_that_becomes_somebody_else_s_is_told_as_removed(mover: Mover) -> None:
    """By a column that is not in the key: `sum` here."""

    async def run(room: Room) -> None:
        room.apply({(1, "call"): 3, (1, "data"): 4, (2, "call"): 5})
        client = Client(room, Asked(holder=OF_THREES))
        client.connect()
        await client.told_up_to(1)
        room.apply({(1, "call"): 9, (1, "data"): 3, (2, "call"): 6})
        await client.told_up_to(2)
        told = client.follower.told[-1].data
        assert [(row["kind"], row["sum"]) for row in told["changed"]] == [("data", 3)]
        assert [(row["account"], row["kind"]) for row in told["removed"]] == [(1, "call")]
        await client.drop()
        await room.settle()

    in_a_room(mover, run)


@pytest.mark.parametrize("text", ["", "7", "x-1", "-1-a", "7-" + 9 * "a", "7-a b", "7-a\n", f"{10**19}-a"])
def test_what_is_no_event_s_id_is_refused(text: str) -> None:
    with pytest.raises(RequestInvalid, match="no event's id"):
        EventId.parse(text)
