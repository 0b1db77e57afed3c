"""The HTTP interface, asked as any client would, on a real server. The job is down all the while."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from stateside.core.errors import KeyInvalid, NotFreshEnough, OperatingError, PositionAhead, ViewUnknown
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.journal import FileLog
from stateside.serving.clients import Client

from .conftest import STRANGE_NAMES, serving

pytestmark = pytest.mark.spark


def test_a_customer_s_running_bill_comes_stamped(server: str, billing_folder: Layout) -> None:
    response = httpx.get(f"{server}/v1/customers/c1/bill")
    document = response.json()
    assert response.status_code == 200
    period = document["periods"][-1]
    assert period["state"] == "draft"
    assert period["amount_micros"] == sum(line["amount_micros"] for line in period["lines"]) > 0
    stamp = document["stamp"]
    assert stamp["position"] == str(FileLog(billing_folder.journal).end())
    assert set(stamp) == {
        "view",
        "generation",
        "batch",
        "position",
        "watermark",
        "committed",
        "age_ms",
        "age_basis",
        "replica",
        "source",
    }
    assert response.headers["stateside-position"] == stamp["position"]
    assert response.headers["stateside-batch"] == str(stamp["batch"])


def test_rows_are_found_by_the_whole_key_and_by_its_first_parts(server: str) -> None:
    with Client(server) as client:
        of_customer = client.rows("bill", "c1")
        assert of_customer["cursor"] is None
        assert {row["customer"] for row in of_customer["rows"]} == {"c1"}
        row = of_customer["rows"][0]
        assert client.rows("bill", "c1", row["period_end"], row["type"], row["plan"])["rows"] == [row]
        assert client.rows("bill", "c1", row["period_end"])["rows"] == of_customer["rows"]
        assert client.rows("bill", "c")["rows"] == [], "a prefix of a part is no part"


def test_a_customer_is_found_by_the_very_name_and_by_no_other(names_server: str) -> None:
    """Names that mean something in addresses: decoded twice, `%41` would be somebody else."""
    with Client(names_server) as client:
        for name in STRANGE_NAMES:
            assert [row["entity"] for row in client.rows("orders", name)["rows"]] == [name]
    plain = httpx.get(f"{names_server}/v1/views/orders/rows/%2541").json()
    assert [row["entity"] for row in plain["rows"]] == ["%41"]


def test_an_answer_waits_for_the_floor_and_is_refused_rather_than_older(server: str) -> None:
    with Client(server) as client:
        with pytest.raises(NotFreshEnough, match="elsewhere-0:1 was asked for"):
            client.rows("bill", "c1", min_position=Position.of({"elsewhere-0": 1}), wait_ms=50)
        with pytest.raises(PositionAhead, match="that is no receipt of this journal"):
            client.rows("bill", "c1", min_position=Position.of({"0": 999_999}), wait_ms=20_000)
        with pytest.raises(NotFreshEnough, match=" old, and max_age_ms="):
            client.rows("bill", "c1", max_age_ms=0, wait_ms=50)
        assert client.rows("bill", "c1", min_position=Position.of({"0": 60}), max_age_ms=3_600_000)["rows"]


def test_the_age_grows_while_the_job_is_down(server: str) -> None:
    with Client(server) as client:
        first = client.rows("bill", "c1")["stamp"]
        time.sleep(0.3)
        second = client.rows("bill", "c1")["stamp"]
    assert second["batch"] == first["batch"]
    assert second["age_ms"] >= first["age_ms"] + 300


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/views/nothing/rows/c1", 404, "view-unknown"),
        ("/v1/views/bill/rows/c1/today", 400, "key-invalid"),
        ("/v1/views/bill/rows/c1/2026-02-28T23:00:00Z/call/basic@1/more", 400, "key-invalid"),
        ("/v1/views/bill/rows/c1?min_position=now", 400, "position-invalid"),
        ("/v1/views/bill/rows/c1?min_position=", 400, "position-invalid"),
        ("/v1/views/bill/rows?limit=0", 400, "request-invalid"),
        ("/v1/views/nothing/rows", 404, "view-unknown"),
        ("/v1/views/bill/rows/c1?max_age_ms=-1", 400, "request-invalid"),
        ("/v1/views/bill/rows/c1?wait_ms=99999999", 400, "request-invalid"),
        ("/v1/views/bill/rows/c1?colour=red", 400, "request-invalid"),
        ("/v1/nothing", 404, "route-unknown"),
        ("/nowhere", 404, "route-unknown"),
        (f"/v1/customers/{'x' * 5_000}/bill", 400, "request-invalid"),
    ],
)
def test_a_bad_request_gets_a_problem_document_that_says_what_to_do(
    server: str, path: str, status: int, code: str
) -> None:
    response = httpx.get(server + path)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"].endswith(f":{code}")
    assert response.json()["detail"]


def test_a_method_that_changes_things_is_refused(server: str) -> None:
    assert httpx.post(f"{server}/v1/views/bill/rows/c1").status_code == 405


def test_the_client_raises_the_server_s_errors_and_says_when_nobody_answers(server: str) -> None:
    with Client(server) as client:
        with pytest.raises(ViewUnknown, match="Views served: bill"):
            client.rows("nothing", "c1")
        with pytest.raises(KeyInvalid, match="is no timestamp"):
            client.rows("bill", "c1", "today")
    with Client("http://127.0.0.1:1", deadline_s=0.5) as client, pytest.raises(OperatingError, match="stateside serve"):
        client.rows("bill", "c1")


def test_a_port_that_is_taken_is_refused_in_one_sentence(server: str, billing_folder: Layout) -> None:
    """Granian would share the port with the other server, and each answer every second request."""
    port = server.rpartition(":")[2]
    command = [sys.executable, "-m", "stateside", "serve", "--dir", str(billing_folder.root), "--port", port]
    failed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert failed.returncode == 1
    assert "Choose another --port" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_second_server_on_the_same_folder_answers_too(server: str, billing_folder: Layout, tmp_path: Path) -> None:
    for second in serving(billing_folder, tmp_path / "second.log"):
        with Client(server) as one, Client(second) as two:
            assert one.rows("bill", "c1")["rows"] == two.rows("bill", "c1")["rows"]


def test_get_on_the_command_line_prints_the_answer_or_one_sentence(server: str) -> None:
    command = [sys.executable, "-m", "stateside", "get", "--url", server]
    found = subprocess.run([*command, "--json", "bill/c1"], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout)["stamp"]["view"] == "bill"
    failed = subprocess.run([*command, "bill/c1/today"], capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert failed.stderr.startswith("Error: 'today' is no timestamp")
    assert "Traceback" not in failed.stderr


def test_a_worker_that_is_killed_is_replaced(server: str, billing_folder: Layout) -> None:
    """The kernel's process table tells who answers: children of the process that listens."""
    worker = _worker_of(server)
    os.kill(worker, signal.SIGKILL)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            assert httpx.get(f"{server}/healthz").status_code == 200
            assert _worker_of(server) != worker
            return
        except (httpx.TransportError, AssertionError, IndexError):
            time.sleep(0.2)
    raise AssertionError("no worker came back")


def _worker_of(server: str) -> int:
    port = server.rpartition(":")[2]
    mains = [p for p in Path("/proc").glob("[0-9]*") if _arguments(p)[-2:] == ["--port", port]]
    (main,) = [p for p in mains if "serve" in _arguments(p)]
    children = (main / "task" / main.name / "children").read_text().split()
    return next(int(child) for child in children if "spawn_main" in " ".join(_arguments(Path("/proc") / child)))


def _arguments(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def test_the_list_of_views_says_how_their_jobs_are(server: str) -> None:
    """Spark has left this folder, and the runner said so."""
    (view,) = httpx.get(f"{server}/v1/views").json()["views"]
    assert view["heard_ms"] >= 0
    assert {name: view[name] for name in ("view", "state", "why")} == {"view": "bill", "state": "stopped", "why": None}
