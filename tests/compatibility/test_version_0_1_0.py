"""Folders that version 0.1.0 wrote (`make.py`) are opened, served, run, restored and audited by this version."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from stateside.cli import main
from stateside.core.clock import ManualClock
from stateside.core.layout import Layout
from stateside.serving.access.tokens import Issuer
from stateside.serving.access.verifier import Verifier
from stateside.testing import rollup, rows, run_to
from tests.sizes import not_in_fast

WRITTEN_US = 1_794_843_000_000_000  # 2026-11-16, 15:30 UTC
ARCHIVE = Path(__file__).with_name("v0.1.0.tar.xz")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def stateside(*arguments: str, input: str | None = None, exit_code: int = 0) -> str:
    done = CliRunner().invoke(main, arguments, input=input)
    assert done.exit_code == exit_code, done.output
    return done.stdout


def orders(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stateside("journal", "read", "--dir", str(folder), "--json").splitlines()]


def spending(events: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    """What the view `spending` makes of these orders, folded in plain Python."""
    totals: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for event in events:
        key = event["entity"], event["payload"]["country"]
        totals[key] += event["payload"]["amount_micros"]
        counts[key] += 1
    return {key: (totals[key], counts[key]) for key in totals}


def served_spending(folder: Path) -> dict[tuple[str, str], tuple[int, int]]:
    found = [row for customer in ("emma", "ben", "aiko") for row in rows(Layout(folder), "spending", customer)]
    return {(row["customer"], row["country"]): (row["total_micros"], row["orders"]) for row in found}


def hours(events: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    """How many orders each country has in each hour, folded in plain Python."""
    return Counter((event["payload"]["country"], event["time_us"] // 3_600_000_000) for event in events)


def hour(start: datetime) -> int:
    return int(start.timestamp()) // 3_600


def open_and_sealed_hours(folder: Path) -> Counter[tuple[str, int]]:
    """The same of the view `hourly`: the rows that are open, and those in the table."""
    found: Counter[tuple[str, int]] = Counter()
    opened = [row for country in ("de", "jp") for row in rows(Layout(folder), "hourly", country)]
    for row in opened:
        found[row["country"], hour(datetime.fromisoformat(row["window"]["start"]))] += row["orders"]
    for file in DeltaTable(folder / "tables/hours").file_uris():
        for row in pq.read_table(file).to_pylist():
            found[row["country"], hour(row["window"]["start"])] += row["orders"]
    return found


@pytest.mark.parametrize("folder", ["billing", "shop"])
def test_its_journals_on_files_and_on_nodes_hold_every_event_undamaged(written: Path, folder: str) -> None:
    said = json.loads(stateside("journal", "verify", "--dir", str(written / folder), "--json"))
    assert said["findings"] == []
    events = orders(written / folder)
    assert len(events) == {"billing": 2626, "shop": 100}[folder]


@pytest.mark.parametrize("folder", ["billing", "shop"])
def test_its_tokens_are_listed_and_new_ones_are_signed_with_its_key(written: Path, folder: str) -> None:
    issuer = Issuer(Layout(written / folder), ManualClock(WRITTEN_US))
    key = (written / folder / "keys.json").read_bytes()
    assert [token.name for token in issuer.tokens()] == ["operations", "emma"]  # and not mallory's, which was revoked
    Verifier(Layout(written / folder)).holder(f"Bearer {Issuer(Layout(written / folder)).create_operator('ben')}")
    assert (written / folder / "keys.json").read_bytes() == key


def test_its_state_is_served_before_any_job_has_run_on_it(written: Path) -> None:
    assert served_spending(written / "shop") == spending(
        [each for each in orders(written / "shop") if int(each["id"].removeprefix("o-")) < 90]
    )
    by_country = rollup(Layout(written / "shop"), "spending", ["country"], "de")
    assert [row["orders"] for row in by_country] == [60]


@not_in_fast("a whole audit; other readers of the folder are here")
def test_its_bills_are_audited_before_any_job_has_run_on_them(written: Path) -> None:
    assert "BROKEN" not in stateside("audit", str(written / "billing"))
    assert "BROKEN" not in stateside("audit", str(written / "billing"), "--full")


@pytest.mark.spark
@pytest.mark.parametrize("restored", [False, True], ids=["from where it was", "from its savepoint"])
def test_its_shop_runs_on_over_the_merged_stream_of_its_nodes(written: Path, spark: Any, restored: bool) -> None:
    from tests.compatibility.shop import app

    folder = str(written / "shop")
    if restored:
        savepoint = json.loads(stateside("savepoint", "list", "--dir", folder, "--view", "spending", "--json"))
        stateside("savepoint", "restore", savepoint["name"], "--dir", folder, "--view", "spending", input="y\n")
    run_to(app, Layout(written / "shop"), spark)
    assert served_spending(written / "shop") == spending(orders(written / "shop"))
    assert open_and_sealed_hours(written / "shop") == hours(orders(written / "shop"))


@pytest.mark.spark
def test_its_billing_runs_on_after_its_savepoint_was_restored_and_every_sum_is_right(written: Path, spark: Any) -> None:
    from stateside.billing.pipeline import app

    folder = str(written / "billing")
    savepoint = json.loads(stateside("savepoint", "list", "--dir", folder, "--json"))  # one line, as there is one
    stateside("savepoint", "restore", savepoint["name"], "--dir", folder, input="y\n")
    run_to(app, Layout(written / "billing"), spark)
    assert rows(Layout(written / "billing"), "bill", "c1")  # moves the replica on, as a server does
    said = json.loads(stateside("audit", folder, "--json"))
    assert said["ok"], said
    assert said["counts"]["events"] == 2626
    assert said["counts"]["duplicates"] >= 1
