"""What docs/billing.md shows is run: its plan, its usage, and every command, on a folder made without Spark."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stateside.billing.answers import api
from stateside.billing.model import usage
from stateside.billing.plans.file import parse_plan
from stateside.core.layout import Layout
from stateside.journal.event import Event
from stateside.journal.json_lines import parse
from tests.billing.test_answers import JANUARY, Folder
from tests.serving.conftest import serving

BILLING = (Path(__file__).parents[2] / "docs" / "billing.md").read_text()

pytestmark = pytest.mark.e2e


def block(name: str) -> str:
    match = re.search(rf"<!-- test: {re.escape(name)} -->\n```\w*\n(.*?)```", BILLING, re.DOTALL)
    assert match, f"docs/billing.md has no block {name}"
    return match[1]


def run(line: str, folder: Path, *more: str) -> str:
    """Run a line of the page in a folder."""
    program, *arguments = shlex.split(line)
    assert program == "stateside"
    command = [sys.executable, "-m", "stateside", *arguments, *more]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, (line, done.stderr)
    return done.stdout


def test_the_plan_is_published_listed_and_assigned(tmp_path: Path) -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=2)).date().isoformat()
    (tmp_path / "plan.toml").write_text(block("plan.toml").replace("2027-01-01  ", f"{tomorrow}  "))
    (tmp_path / "data").mkdir()
    receipt, plans, assigned = (run(line, tmp_path) for line in block("publish").splitlines())
    assert (receipt, assigned) == ("0:1\n", "0:2\n")
    assert plans.startswith("basic@1  from ")


def test_the_prices_are_what_the_page_says_of_them() -> None:
    plan = parse_plan(block("plan.toml").encode(), "plan.toml")
    assert plan.amount_micros("message", 8) == 800_000
    assert plan.amount_micros("message", 12) - plan.amount_micros("message", 8) == 400_000
    assert plan.amount_micros("call", 6_060) == 90_000


def test_the_usage_is_usage(tmp_path: Path) -> None:
    for number, line in enumerate(block("usage.jsonl").splitlines()):
        event = parse(number, line.encode(), JANUARY.start_us)
        assert isinstance(event, Event), event
        again = usage(event.id, event.entity, event.type, event.time_us, **event.payload)
        assert again.payload == event.payload


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `data` with emma's January sealed, and a dead letter at offset 7."""
    root = tmp_path_factory.mktemp("docs")
    made = Folder(Layout(root / "data"))
    made.clock.time_us = JANUARY.start_us + 2 * 86_400_000_000
    made.append(made.used("m-1", "message", 8), made.used("c-1", "call", 120), made.used("u-1", "call", 60, "ema"))
    made.batch(JANUARY.end_us)
    return root


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    layout = Layout(folder / "data")
    yield from serving(layout, tmp_path_factory.mktemp("logs") / "server.log", "/v1/customers/emma/bill")


def test_bills_explanations_totals_and_invoices_are_shown(folder: Path, url: str) -> None:
    bill, explained, totals = (run(line, folder, "--url", url) for line in block("ask").splitlines())
    assert "2026-01  sealed  0.89 EUR  (I-000000001)" in bill
    assert "emma, 2026-01, sealed: 2 events make 0.89 EUR" in explained
    assert re.search(r"EUR +all +2 +0.00 +0.89 +0.89", totals)
    for line in block("invoices").splitlines():
        run(line, folder, "--url", url)
    assert (folder / "invoice.pdf").read_bytes().startswith(b"%PDF")


def test_dead_letters_are_listed_shown_and_replayed(folder: Path, url: str) -> None:
    listed, shown, *replays = block("dead letters").splitlines()
    assert "1 dead letters: unknown-customer 1" in run(listed, folder, "--url", url)
    assert json.loads(run(shown, folder, "--url", url))["entity"] == "ema"
    assert {run(line, folder) for line in replays} == {"0:9\n"}, "the second one finds that it was replayed"


def test_tokens_are_made_listed_and_revoked(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    first, second, listed, _ = (run(line, tmp_path) for line in block("tokens").splitlines())
    assert first != second
    assert "emma's page\tread\tcustomer=emma\t" in listed
    assert "emma" not in run("stateside token list --dir data", tmp_path)


def test_the_table_has_all_routes(tmp_path: Path) -> None:
    for route in api.routes(Layout(tmp_path)):
        pattern = re.sub(r"\\{\w+\\}", r"\\{\\w+\\}", re.escape(route.pattern))
        assert re.search(rf"`{pattern}[?`]", BILLING), route.pattern
