"""What processes count of their answers, each in its own file, and how all of it is told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stateside.serving.health.metrics import Metrics, text
from stateside.serving.health.tallies import (
    FOLDER_VARIABLE,
    OTHER,
    SECONDS,
    SERIES_MAX,
    Gauge,
    ProcessUse,
    Tallies,
    with_children,
)


def counted(tallies: Tallies) -> dict[tuple[str, str, str], int]:
    return {series: sum(counts[:-1]) for series, counts in tallies.all().items()}


def test_what_several_count_in_a_folder_is_added_up_by_each(tmp_path: Path) -> None:
    one, other = Tallies(tmp_path), Tallies(tmp_path)
    for tallies, times in ((one, 3), (other, 4)):
        for _ in range(times):
            tallies.count("/a", "GET", 200, 0.0007)
    other.count("/b", "POST", 500, 99.0)
    assert counted(one) == counted(other) == {("/a", "GET", "200"): 7, ("/b", "POST", "500"): 1}


def test_what_a_process_counted_stays_when_it_has_ended(tmp_path: Path) -> None:
    ended = Tallies(tmp_path)
    ended.count("/a", "GET", 200, 0.1)
    del ended
    assert counted(Tallies(tmp_path)) == {("/a", "GET", "200"): 1}


def test_an_answer_is_in_the_bucket_that_it_just_fits() -> None:
    tallies = Tallies()
    for seconds in (SECONDS[0], SECONDS[0] + 1e-6, SECONDS[-1], SECONDS[-1] + 1):
        tallies.count("/a", "GET", 200, seconds)
    (counts,) = tallies.all().values()
    assert counts[:2] == [1, 1]
    assert counts[-3:] == [1, 1, sum(int(each * 1e6) for each in (SECONDS[0], SECONDS[0] + 1e-6, 30, 31))]


def test_methods_that_clients_make_up_are_one_series() -> None:
    tallies = Tallies()
    for number in range(3 * SERIES_MAX):
        tallies.count("none", f"M{number}", 405, 0.1)
    assert counted(tallies) == {("none", OTHER, "405"): 3 * SERIES_MAX}


def test_what_finds_no_room_is_counted_as_other(tmp_path: Path) -> None:
    tallies = Tallies(tmp_path)
    for number in range(SERIES_MAX + 10):
        tallies.count(f"/{number}", "GET", 200, 0.1)
    assert len(counted(tallies)) == SERIES_MAX
    assert counted(tallies)[OTHER, OTHER, OTHER] == 11
    tallies.count("/0", "GET", 200, 0.1)
    assert counted(tallies)["/0", "GET", "200"] == 2


def test_requests_under_way_are_those_of_living_processes(tmp_path: Path) -> None:
    mine, its = Tallies(tmp_path), Tallies(tmp_path)
    (tmp_path / "1-dead.cells").write_bytes((7).to_bytes(8, "little") * len(Gauge))
    with mine.under_way(Gauge.WATCHERS), its.under_way(Gauge.WATCHERS), its.under_way(Gauge.SQL_STATEMENTS):
        found = mine.now_under_way({os.getpid()})
        assert found == {Gauge.WATCHERS: 2, Gauge.SQL_STATEMENTS: 1}
    assert mine.now_under_way({os.getpid()}) == {Gauge.WATCHERS: 0, Gauge.SQL_STATEMENTS: 0}


def test_the_use_of_a_server_is_that_of_its_main_process_and_all_below() -> None:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None and child.stdout.readline(), "it runs"
        assert {os.getpid(), child.pid} <= with_children(os.getpid())
        use = ProcessUse.of(child.pid)
        assert use is not None and use.resident_bytes > 0 and use.open_files > 0
        assert abs(use.start_s - time.time()) < 3_600
    before = ProcessUse.of(os.getpid())
    assert before is not None and child.pid not in with_children(os.getpid())
    assert ProcessUse.of(child.pid) is None


def test_the_text_has_counters_and_growing_buckets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    metrics, other = Metrics(), Metrics()
    metrics.answered("/a", "GET", 200, 0.0004)
    other.answered("/a", "GET", 404, 0.004)
    told = text(metrics.of_server()).decode()
    assert 'stateside_answers_total{method="GET",route="/a",status="200"} 1.0' in told
    assert 'stateside_answers_total{method="GET",route="/a",status="404"} 1.0' in told
    assert 'stateside_answer_seconds_bucket{le="0.0005",route="/a"} 1.0' in told
    assert 'stateside_answer_seconds_bucket{le="0.005",route="/a"} 2.0' in told
    assert 'stateside_answer_seconds_bucket{le="+Inf",route="/a"} 2.0' in told
    assert 'stateside_answer_seconds_count{route="/a"} 2.0' in told
    assert 'stateside_answer_seconds_sum{route="/a"} 0.0044' in told
