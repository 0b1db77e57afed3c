"""Progress of a load: it only grows, ends at 1, and is told by bytes first and by rows then."""

import logging

import pytest

from stateside.replica import bootstrap
from stateside.replica.bootstrap import READING_SHARE, LoadCounter, LoadProgress


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[LoadProgress]:
    monkeypatch.setattr(bootstrap, "WATCH_S", 0.0)
    return []


def test_a_load_is_told_from_nothing_to_all_of_it(seen: list[LoadProgress]) -> None:
    load = LoadCounter("spending", 7, 400, seen.append)
    for part in range(4):
        load.read(50)
        load.read(50)
        load.end_of_part(100)
        assert seen[-1].done == pytest.approx(READING_SHARE * (part + 1) / 4)
    assert seen[3].done == pytest.approx(READING_SHARE * 1.5 / 4), "as the first partition had rows for its size"
    load.stored(200)
    assert seen[-1] == LoadProgress("spending", 7, 400, READING_SHARE + (1 - READING_SHARE) / 2)
    load.stored(200)
    load.end()
    assert seen[-1].done == 1.0
    shares = [each.done for each in seen]
    assert shares == sorted(shares)


def test_a_load_of_nothing_ends_too(seen: list[LoadProgress]) -> None:
    load = LoadCounter("spending", 0, 0, seen.append)
    load.end_of_part(0)
    load.end()
    assert seen[-1].done == 1.0


def test_a_long_load_is_told_to_the_log(
    seen: list[LoadProgress], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "LOG_S", 0.0)
    load = LoadCounter("spending", 7, 100, seen.append)
    load.read(1_000)
    load.end_of_part(50)
    load.end()
    assert "view spending: batch 7 is being loaded, 20% done, from snapshots, 1,000 rows" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
