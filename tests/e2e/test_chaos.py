"""Chaos as people run it, shortened: one system on Kafka and a cluster that is broken in one way after the other.

`stateside chaos --all`, a system for each scenario, is what `make chaos` does; docs/crash-matrix.md has what came out.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from stateside.testbed.chaos import ChaosSettings, run_scenarios
from stateside.testbed.chaos_report import Result
from stateside.testbed.faults import together
from stateside.testbed.scenarios import (
    BROKER_KILLED,
    DRIVER_KILLED,
    MASTER_KILLED,
    REPLICA_KILLED,
    SCENARIOS,
    STORE_AWAY,
    WORKER_KILLED,
    ChaosScenario,
    scenario_of,
)
from stateside.testbed.system import SystemShape
from tests.sizes import in_full, sized

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(900)]

AWAY_S = 3.0
EVERY_PART = scenario_of(
    "every-part",
    SystemShape(journal="kafka", cluster=True),
    DRIVER_KILLED,
    replace(BROKER_KILLED, away_s=AWAY_S),
    replace(together(WORKER_KILLED, STORE_AWAY), away_s=AWAY_S),
    replace(together(MASTER_KILLED, REPLICA_KILLED), away_s=AWAY_S),
)


def run(scenarios: Sequence[ChaosScenario], settings: ChaosSettings, folder: Path) -> Result:
    told = io.StringIO()
    (result,) = run_scenarios(scenarios, settings, folder, Console(file=told, width=200))
    print(told.getvalue(), result)
    return result


def check_nothing_lost(result: Result) -> None:
    assert result.problems == ()
    assert result.events > 1_000, "there was something to lose"
    assert result.invoices > 100
    assert result.requests_answered > 100
    assert (result.events_lost, result.events_doubled) == (0, 0)
    assert (result.invoices_missing, result.invoices_doubled, result.sums_off) == (0, 0, 0)
    assert result.requests_failed == 0, "a second replica runs"


@pytest.mark.network
def test_each_part_in_turn_is_killed_or_taken_away_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    """Broker, worker, master and replica are killed, and the invoice store goes away and comes back."""
    result = run([EVERY_PART], ChaosSettings(seconds=sized(8, 12)), tmp_path)
    check_nothing_lost(result)
    assert len(result.faults) == len(EVERY_PART.faults)
    assert result.events_meanwhile > 100, "it was broken under load"


@in_full(
    "tests/billing/test_sink.py shows what is stored twice without the guard, tests/billing/audit/test_laws.py and"
    " tests/testbed/test_chaos.py that it is found"
)
def test_the_control_without_its_guard_is_found_to_double(tmp_path: Path) -> None:
    """A driver killed when documents are stored, and their batch is not committed: the batch is repeated."""
    result = run([SCENARIOS["driver-killed"]], ChaosSettings(20, guarantee="at-least-once"), tmp_path)
    assert result.events_doubled > 0
    assert result.invoices_doubled > 0
    assert result.sums_off > 0
    assert any("where one belongs" in problem for problem in result.problems), "the auditor says it in a sentence"
    assert (result.events_lost, result.invoices_missing) == (0, 0), "it is at least once"
    assert result.requests_failed == 0
