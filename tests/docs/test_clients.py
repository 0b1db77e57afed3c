"""What docs/clients.md shows is run, on a server with the view that it asks; its limits are the code's."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateside.core.processes import Child, free_port
from stateside.serving.clients import AsyncClient, Client, transport
from stateside.serving.clients import core as core_module
from stateside.serving.clients.client import TOGETHER_MAX
from stateside.serving.registry.announcement import SILENCE_S
from tests.serving.cluster import Cluster

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()

pytestmark = pytest.mark.e2e


def block(name: str) -> str:
    match = re.search(rf"<!-- test: {re.escape(name)} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert match, f"docs/clients.md has no block {name}"
    return match[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("docs"))
    try:
        made.start("whole")
        yield made
    finally:
        made.close()


def run(cluster: Cluster, name: str) -> dict[str, Any]:
    """Run a block, with those that it builds upon, against the server."""
    url = cluster.servers["whole"][1]
    known: dict[str, Any] = {"Client": Client}
    exec(block(name).replace("http://127.0.0.1:8471", url), known)
    return known


def test_rows_lookups_scans_rollups_and_frames_are_asked_for(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run(cluster, "rows")
    assert capsys.readouterr().out.splitlines()[:3] == ["de 1", "fr 1", "it 1"]
    run(cluster, "more")
    assert capsys.readouterr().out.splitlines() == ["1 None", "38 0", "40"]
    asyncio.run(run(cluster, "async")["ask"]())
    run(cluster, "frames")
    assert "total: int64" in capsys.readouterr().out


def test_changes_are_watched(cluster: Cluster) -> None:
    later = threading.Timer(1.0, cluster.batch)
    later.start()
    rows = run(cluster, "watch")["rows"]
    later.join()
    assert {row["orders"] for row in rows.values()} == {2}


def test_the_commands_are_run(cluster: Cluster) -> None:
    for line in block("commands").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "stateside"
        command = [sys.executable, "-m", "stateside", *arguments, "--url", cluster.servers["whole"][1]]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), (line, done.stderr)
        assert done.stdout


def test_the_table_has_all_methods_of_both_clients() -> None:
    for kind in (Client, AsyncClient):
        methods = {name for name in vars(kind) if not name.startswith("_")} - {"close"}
        assert all(re.search(rf"`{name}\(", PAGE) for name in methods)
    assert {name for name in vars(Client) if name[0] != "_"} == {name for name in vars(AsyncClient) if name[0] != "_"}


def test_the_servers_of_the_page_on_serving_share_the_keys_and_find_each_other(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    (commands,) = re.findall(r"<!-- test: shares -->\n```\n(.*?)```", page, re.DOTALL)
    made = Cluster(tmp_path / "checkpoints")
    try:
        for line in commands.splitlines():
            _, *arguments = shlex.split(line)
            given = dict(zip(arguments[2::2], arguments[3::2], strict=True))
            port = str(free_port())
            paths = {"--dir": tmp_path / given["--dir"], "--announce": tmp_path / given["--announce"], "--port": port}
            command = ["serve", str(tmp_path / arguments[1])]
            command += [text for flag, value in (given | paths).items() for text in (flag, str(value))]
            url, name = f"http://127.0.0.1:{port}", given["--name"]
            child = Child([sys.executable, "-m", "stateside", *command], tmp_path / f"{name}.log")
            made.servers[name] = child, url
            made.wait_for(name)
        with Client(url) as client:
            assert sum(len(page.rows) for page in client.scan("orders")) == 3 * made.customers
            assert {server["name"] for server in client.servers()} == {"one", "two"}
            told = client.locate("orders", "c001")
            assert set(told.servers[0]) == set(
                json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[-1])["servers"][0]
            )
    finally:
        made.close()
    assert f"silent for {SILENCE_S:g} s does not count" in " ".join(page.split())


def test_the_limits_are_those_of_the_code() -> None:
    flat = " ".join(PAGE.split())
    for said in (
        f"`deadline_s` ({core_module.DEADLINE_S:g} s)",
        f"Pauses are {core_module.PAUSE_S_MIN * 1_000:g} ms at first, double up to {core_module.PAUSE_S_MAX:g} s",
        f"One attempt may take {core_module.ATTEMPT_S:g} s",
        f"connecting {transport.CONNECT_S_MAX:g} s",
        f"list of all servers (`GET /v1/servers`), every {core_module.LOOK_S:g} s",
        f"the copy is asked last for {core_module.AWAY_S:g} s",
    ):
        assert said in flat, said
    assert TOGETHER_MAX >= 2
