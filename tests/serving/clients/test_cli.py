"""The asking commands as people and scripts meet them, over servers with shares: tables, JSON, errors in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from stateside.cli.tables import readable, show_document
from tests.serving.cluster import Cluster

pytestmark = pytest.mark.e2e


def run(cluster: Cluster, *arguments: str, url: tuple[str, ...] | None = None) -> subprocess.CompletedProcess[str]:
    urls = url or tuple(cluster.servers[name][1] for name in ("one", "two"))
    flags = [flag for address in urls for flag in ("--url", address)]
    command = [sys.executable, "-m", "stateside", *arguments, *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def said(cluster: Cluster, *arguments: str) -> list[str]:
    done = run(cluster, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def document(cluster: Cluster, *arguments: str) -> Any:
    return json.loads("\n".join(said(cluster, *arguments, "--json")))


def test_rows_are_a_table_with_the_stamp_under_it_or_the_answer_as_it_is(cluster: Cluster) -> None:
    head, germany, france, italy, stamp = said(cluster, "get", "spending/c002")
    assert head.split() == ["customer", "country", "orders", "total", "mean"]
    batch = cluster.written.batches - 1  # other tests write some too
    assert [line.split()[:3] for line in (germany, france, italy)] == [
        ["c002", name, f"{batch + 1:,}"] for name in ("de", "fr", "it")
    ]
    assert stamp.startswith(f"spending, batch {batch}, share ")
    answer = document(cluster, "get", "spending/c002/de")
    (row,) = answer["rows"]
    assert [row[name] for name in ("customer", "country", "orders", "total")] == [
        "c002",
        "de",
        batch + 1,
        1_000 * batch + 2,
    ]
    assert set(answer) == {"stamp", "rows", "cursor"}
    assert said(cluster, "get", "spending/nobody")[0] == "no rows"


def test_scans_rollups_views_and_locations(cluster: Cluster) -> None:
    lines = said(cluster, "scan", "spending", "--where", "country=de", "--order=-total", "--columns", "customer,orders")
    newest = f"{cluster.written.batches:,}"
    assert [line.split() for line in lines[1:-2]] == [[f"c{number:03}", newest] for number in range(39, -1, -1)]
    assert [len(json.loads(line)["rows"]) for line in said(cluster, "scan", "spending", "--rows", "4", "--json")] == [4]
    (total,) = document(cluster, "rollup", "spending")["rows"]
    assert total["orders"] == 120 * cluster.written.batches
    assert said(cluster, "rollup", "spending", "country", "de")[1].split()[:2] == [
        "de",
        f"{40 * cluster.written.batches:,}",
    ]
    assert document(cluster, "views")["views"][0]["view"] == "spending"
    found = document(cluster, "locate", "spending/c001")
    assert [each["share"] for each in found["servers"]] == [found["share"]]
    assert said(cluster, "locate", "spending/c001")[0].split() == ["url", "name", "share", "replica", "batch", "age"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["get", "nothing/x"], "There is no view 'nothing' here"),
        (["get", "spending/a/b/c"], "The key has 3 parts"),
        (["scan", "spending", "--where", "colour=red"], "is no filter"),
        (["rollup", "spending", "colour"], "has no column 'colour'"),
        (["get", "spending/a", "--min-position", "soon"], "'soon' is no position"),
        (["watch", "spending"], "several shares together"),
        (["sql", "SELECT * FROM spending"], "Each server has a share of the keys"),
    ],
)
def test_what_goes_wrong_is_one_sentence(cluster: Cluster, arguments: list[str], told: str) -> None:
    done = run(cluster, *arguments)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert told in line
    assert line.endswith(".")


def test_a_server_that_is_away_is_passed_over_and_if_all_are_it_is_told_soon(cluster: Cluster) -> None:
    there = cluster.servers["one"][1]
    assert run(cluster, "get", "spending/c001", url=("http://127.0.0.1:1", there)).returncode == 0
    done = run(cluster, "get", "spending/c001", url=("http://127.0.0.1:1",))
    assert done.returncode == 1
    assert "No Stateside server answered" in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("total_micros", 12_500_000, "12.50"),
        ("total_micros", -1, "-0.000001"),
        ("total_micros", 1_234_567_890_000, "1,234,567.89"),
        ("orders", 1_234, "1,234"),
        ("period_end", "2026-01-31T23:00:00Z", "2026-01-31 23:00:00"),
        ("time", "2026-01-31T23:00:00.5Z", "2026-01-31 23:00:00.5"),
        ("name", "[bold]x", "[bold]x"),
        ("window", {"start": "x"}, '{"start": "x"}'),
        ("mean", 0.5, "0.5"),
        ("ok", True, "true"),
        ("any", None, "-"),
    ],
)
def test_values_are_shown_as_people_read_them(name: str, value: Any, shown: str) -> None:
    assert readable(name, value) == shown


def test_what_a_server_says_of_itself_has_ages_with_units_and_names_without_brackets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = {"view": "meters", "state": "stopped", "why": None, "heard_ms": 311_016, "not_in_rollups": ["low", "high"]}
    show_document({"views": [view]}, [view], as_json=False)
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["view", "state", "why", "heard", "not_in_rollups"]
    assert line.split(maxsplit=3) == ["meters", "stopped", "-", "5 min  low, high"]
    show_document({"views": [view]}, [view], as_json=True)
    assert json.loads(capsys.readouterr().out) == {"views": [view]}
