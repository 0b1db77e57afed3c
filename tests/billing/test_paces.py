"""Paces are folded in real processes of their own, and kept for a while."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from typing import Any

import pytest

from stateside.billing.answers import pace as module
from stateside.billing.answers.pace import CachedPace, Paces
from stateside.core.errors import StateError
from stateside.core.layout import Layout
from stateside.serving.stamp import Stamp
from tests.sizes import not_in_fast

from .test_pace import Months, at, of

pytestmark = not_in_fast("a process for each fold; test_pace has the sums")

Asked = tuple[Stamp, Mapping[str, Any]] | None


@pytest.fixture
def months(layout: Layout) -> Months:
    made = Months(layout)
    made.used("m-1", "emma", "message", 1, at("2026-01-02T12:00"))
    made.used("m-2", "emma", "message", 3, at("2026-02-05T12:00"))
    made.folder.batch()
    return made


async def ask(paces: Paces, months: Months) -> Asked:
    stamp, totals = await asyncio.to_thread(months.totals, "2026-02")
    _, before = await asyncio.to_thread(months.totals, "2026-01")
    return await paces.of(stamp, totals, before, months.folder.plans.all())


def test_a_pace_is_kept_for_a_while_and_says_how_old_it_is(months: Months, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        paces = Paces(months.folder.layout)
        first = await ask(paces, months)
        assert first is not None
        assert of(dict(first[1]))["days"] == [0] * 4 + [300_000]
        again = await ask(paces, months)
        assert again is not None
        assert again[1] is first[1], "no event came in"
        months.used("m-3", "emma", "message", 1, at("2026-02-07T12:00"))
        await asyncio.to_thread(months.folder.batch)
        kept = await ask(paces, months)
        assert kept is not None
        assert kept[1] is first[1]
        assert kept[0].position == first[0].position
        assert kept[0].age_ms >= first[0].age_ms
        monkeypatch.setattr(module, "KEPT_S", 0)
        monkeypatch.setattr(module, "SHARE", 0)
        assert (await ask(paces, months) or kept)[1] is first[1], "it is made again, and nobody waits for that"
        await asyncio.gather(*paces._made.values())
        made = await ask(paces, months)
        assert made is not None
        assert of(dict(made[1]))["days"] == [0] * 4 + [300_000, 0, 100_000]

    asyncio.run(run())


def test_who_asks_first_is_told_that_it_is_not_ready_if_it_takes_long(
    months: Months, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr(module, "WAIT_S", 0.01)
        paces = Paces(months.folder.layout)
        assert await ask(paces, months) is None
        await asyncio.gather(*paces._made.values())
        assert await ask(paces, months) is not None

    asyncio.run(run())


def test_a_fold_that_fails_is_told_and_tried_again_after_a_while(
    months: Months, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr(module, "SHARE", 10_000)
        paces, layout = Paces(months.folder.layout), months.folder.layout
        shutil.move(layout.journal, layout.root / "away")
        with pytest.raises(StateError, match="The hours of 2026-02 cannot be added up: "):
            await ask(paces, months)
        shutil.move(layout.root / "away", layout.journal)
        with pytest.raises(StateError, match="The hours of 2026-02 cannot be added up: "):
            await ask(paces, months)
        monkeypatch.setattr(module, "SHARE", 0)
        assert await ask(paces, months) is not None
        assert not paces._failed

    asyncio.run(run())


def test_folds_that_fail_take_no_larger_share_of_the_time_than_others_and_the_last_pace_is_given_meanwhile(
    months: Months, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        folds = 0

        async def failing(*asked: object) -> None:
            nonlocal folds
            folds += 1
            await asyncio.sleep(0.01)
            raise StateError("no room")

        paces = Paces(months.folder.layout)
        first = await ask(paces, months)
        assert first is not None
        months.used("m-3", "emma", "message", 1, at("2026-02-07T12:00"))
        await asyncio.to_thread(months.folder.batch)
        monkeypatch.setattr(paces, "_hours", failing)
        monkeypatch.setattr(module, "KEPT_S", 0)
        monkeypatch.setattr(module, "SHARE", 0)
        assert (await ask(paces, months) or first)[1] is first[1]
        await asyncio.gather(*paces._made.values(), return_exceptions=True)
        await asyncio.sleep(0)
        monkeypatch.setattr(CachedPace, "serves", lambda *given: False)
        monkeypatch.setattr(module, "SHARE", 1_000_000)
        for _ in range(3):
            assert (await ask(paces, months) or first)[1] is first[1]
        assert folds == 1

    asyncio.run(run())
