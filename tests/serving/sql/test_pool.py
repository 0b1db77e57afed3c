"""Who runs where: places and the queue, decided without any process; and what becomes of processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import TooManyRequests
from stateside.core.layout import Layout
from stateside.serving.access.principal import OPERATOR, Principal
from stateside.serving.rows.floor import Floor
from stateside.serving.sql import pool
from stateside.serving.sql.pool import ProcessSlots, SqlPool, SqlSlots, Waiter
from stateside.serving.sql.sql_query import SqlQuery
from tests.sizes import sized

from .asking import shop

BEN = Principal("ben", frozenset({"sql"}), where={"customer": "ben"})


def places() -> list[ProcessSlots]:
    return [ProcessSlots(4, reserved=True), ProcessSlots(2), ProcessSlots(2)]


def entered(slots: SqlSlots, token: str, *, operator: bool = False) -> Waiter:
    waiter = Waiter(token, operator)
    assert slots.enter(waiter)
    return waiter


def test_a_token_has_its_statements_in_one_place_and_no_more_than_fit() -> None:
    slots = SqlSlots(places())
    ben = [entered(slots, "ben") for _ in range(3)]
    place = ben[0].place
    assert place is not None and place is ben[1].place
    assert ben[2].place is None, "although another process is free"
    emma = entered(slots, "emma")
    assert emma.place not in (None, ben[0].place)
    assert entered(slots, "eve").place is None
    slots.leave(place)
    assert ben[2].place is None, "eve waits for a process, and may have this one when ben's other statement ends"


def test_nobody_but_an_operator_gets_the_reserved_place() -> None:
    slots = SqlSlots(places())
    for token in ("ben", "emma", "eve"):
        entered(slots, token)
    first = [entered(slots, "root", operator=True) for _ in range(5)]
    assert all(each.place is slots.places[0] for each in first[:4])
    assert first[4].place is None
    assert entered(slots, "admin", operator=True).place is None, "another operator's kill would end root's statements"


def test_a_token_that_always_runs_something_is_followed_by_who_waits() -> None:
    slots = SqlSlots(places())
    held = entered(slots, "emma"), entered(slots, "emma")
    running = entered(slots, "ben")
    waiting = entered(slots, "eve")
    newer = entered(slots, "ben")
    assert (waiting.place, newer.place) == (None, None), "ben has a slot free, and goes on after eve"
    assert running.place is not None
    slots.leave(running.place)
    assert waiting.place is not None
    assert newer.place is None
    for each in (*held, waiting):
        assert each.place is not None
        slots.leave(each.place)
    assert newer.place is not None


def test_the_process_that_kept_a_token_s_rows_is_the_first_choice() -> None:
    slots = SqlSlots(places())
    ben, emma = entered(slots, "ben"), entered(slots, "emma")
    for each in (ben, emma):
        assert each.place is not None
        slots.leave(each.place)
    assert entered(slots, "emma").place is emma.place
    assert entered(slots, "ben").place is ben.place


def test_only_so_many_of_a_token_wait() -> None:
    slots = SqlSlots([ProcessSlots(1)])
    for _ in range(1 + pool.WAITING_MAX):
        entered(slots, "ben")
    assert not slots.enter(Waiter("ben", operator=False))
    assert slots.enter(Waiter("emma", operator=False))


steps = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 99), st.booleans()), max_size=60)


@settings(max_examples=sized(50, 5_000), deadline=None)
@given(steps=steps)
def test_whatever_comes_and_goes_tokens_stay_apart_and_everybody_has_a_turn(
    steps: list[tuple[str, int, bool]],
) -> None:
    slots, there = SqlSlots(places()), list[Waiter]()
    for token, number, comes in steps:
        if comes or not there:
            waiter = Waiter(token, operator=token in "ab")
            if slots.enter(waiter):
                there.append(waiter)
        else:
            _gone(slots, there.pop(number % len(there)))
        running = [each for each in there if each.place is not None]
        for place in slots.places:
            tokens = [each.token for each in running if each.place is place]
            assert len(tokens) == place.running <= place.slots
            assert len(set(tokens)) <= 1
            assert not place.reserved or set(tokens) <= {"a", "b"}
        for token in "abcde":
            assert sum(bool(place.running) and place.token == token for place in slots.places[1:]) <= 1
        if any(each.place is None and each.token in ("a", "b") for each in there):
            assert slots.places[0].running, "an operator waits for an operator, never for anybody else"
    while there:
        running = [each for each in there if each.place is not None]
        assert running, "nobody waits while nobody runs"
        there.remove(running[0])
        _gone(slots, running[0])


def _gone(slots: SqlSlots, waiter: Waiter) -> None:
    if waiter.place is None:
        slots.give_up(waiter)
    else:
        slots.leave(waiter.place)


def in_pool(layout: Layout, work: Callable[[SqlPool], Any], **options: Any) -> None:
    """Do this with a pool of processes, which end with it."""

    async def run() -> None:
        made = SqlPool(layout, **options)
        try:
            await work(made)
        finally:
            for process in made._processes.values():
                process.kill()

    asyncio.run(run())


async def answered(made: SqlPool, holder: Principal, text: str = "SELECT 1", timeout_ms: int = 30_000) -> bytes:
    remote = await made.run(SqlQuery(text, timeout_ms=timeout_ms), holder, Floor(), asyncio.Event().wait)  # type: ignore[arg-type]
    try:
        return b"".join([part async for part in remote])
    finally:
        await remote.aclose()


@pytest.mark.e2e
def test_a_shared_process_that_nobody_uses_is_ended_and_the_operators_stays(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    shop(layout)

    async def work(made: SqlPool) -> None:
        for holder in (OPERATOR, BEN):
            assert b'"rows":[[1]]' in await answered(made, holder)
        reserved, shared, *unused = [process._process for process in made._processes.values()]
        assert unused == [None] * (pool.SHARED_PROCESSES - 1), "processes start when they are needed"
        assert reserved is not None
        assert shared is not None
        while shared.poll() is None:
            await asyncio.sleep(0.05)
        assert reserved.poll() is None
        assert b'"rows":[[1]]' in await answered(made, BEN)

    in_pool(layout, work, idle_s=0.2)


@pytest.mark.e2e
def test_a_slot_is_free_again_whatever_came_of_its_statement(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    shop(layout)
    endless = "SELECT count(*) FROM range(1_000_000_000_000) WHERE hash(range) = 1"

    async def work(made: SqlPool) -> None:
        running = [asyncio.ensure_future(answered(made, BEN, endless)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests):
            await answered(made, BEN, timeout_ms=200)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for _ in range(3):
            assert await asyncio.gather(*[answered(made, BEN) for _ in range(pool.SHARED.statements_max)])

    in_pool(layout, work)
