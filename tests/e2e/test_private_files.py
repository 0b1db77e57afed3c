"""What commands write is private: no file of theirs has a bit for the group or for others, whatever the umask was."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateside.core.layout import Layout
from stateside.core.processes import free_port
from tests.waiting import wait_until

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def command(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    """As from a shell whose umask lets everybody read."""
    whole = [sys.executable, "-m", "stateside", *arguments]
    return subprocess.Popen(whole, umask=0o022, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def done(*arguments: str, **more: Any) -> str:
    process = command(*arguments, **more)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def loose(folder: Path, bits: int = OTHERS) -> list[str]:
    """What others than the owner could do something with, and how."""
    found = [folder, *(Path(where) / name for where, folders, files in os.walk(folder) for name in folders + files)]
    return [f"{path} {path.lstat().st_mode:o}" for path in found if path.lstat().st_mode & bits]


@pytest.mark.e2e
@pytest.mark.spark
def test_all_that_a_run_a_server_and_other_commands_write_is_their_owner_s_alone(tmp_path: Path) -> None:
    layout, port = Layout(tmp_path / "data"), free_port()
    place = ("--dir", str(layout.root))
    done("billing", "generate", *place, "--customers", "3", "--events", "5", "--periods", "2")
    token = done("token", "create", "all", "--role", "operator", *place).strip()
    running = command("run", "stateside.billing.pipeline:app", *place)
    serving = command("serve", *place, "--port", str(port))
    try:
        client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"}, timeout=30
        )

        def asked(path: str) -> bool:
            assert running.poll() is None and serving.poll() is None
            try:
                return client.get(path).status_code == 200
            except httpx.TransportError:
                return False

        wait_until((layout.view("bill").checkpoint / "offsets" / "0").exists)  # Spark has started
        wait_until(lambda: asked("/v1/customers/c1/bill"))
        wait_until(lambda: bool(client.get("/v1/customers/c1/invoices").json()["documents"]))
        assert client.get("/v1/views", headers={"Authorization": "Bearer x"}).status_code == 401  # refusals.jsonl
        assert client.post("/v1/sql", json={"sql": "select count(*) from archive.documents"}).status_code == 200
        assert client.post("/v1/views/bill/savepoints").status_code == 200
        event = {"id": "a", "entity": "c1", "type": "call", "payload": {"quantity": 1}}
        assert client.post("/v1/events", json={"events": [event]}).status_code == 200
        done("audit", str(layout.root))
    finally:
        for process in (running, serving):
            process.send_signal(signal.SIGTERM)
        for process in (running, serving):
            process.communicate(timeout=120)
    written = {path.relative_to(layout.root).parts[0] for path in layout.root.rglob("*")}
    assert written >= {"journal", "views", "tables", "keys.json", "issued.json", "refusals.jsonl", "spark", "servers"}
    assert written >= {".keys.json.lock", ".issued.json.lock", "audit", "driver.lock"}
    assert loose(layout.root) == []


@pytest.mark.e2e
def test_a_group_may_read_what_is_written_where_that_is_asked_for_but_never_the_keys(tmp_path: Path) -> None:
    folder, shared = tmp_path / "data", os.environ | {"STATESIDE_UMASK": "027"}
    (tmp_path / "events.jsonl").write_text('{"id": "a", "entity": "e", "type": "t"}\n')
    done("append", "--dir", str(folder), str(tmp_path / "events.jsonl"), env=shared)
    done("token", "create", "x", "--dir", str(folder), env=shared)
    assert stat.S_IMODE((folder / "journal").stat().st_mode) == 0o750
    assert loose(folder / "journal", stat.S_IRWXO | stat.S_IWGRP) == []
    assert [path for path in folder.glob("*.json") if path.stat().st_mode & OTHERS] == []
    assert [path for path in folder.glob(".*.lock") if path.stat().st_mode & OTHERS] == []


@pytest.mark.e2e
def test_a_lock_of_the_keys_that_an_older_version_left_open_to_all_is_closed(tmp_path: Path) -> None:
    lock = tmp_path / ".keys.json.lock"
    lock.touch()
    lock.chmod(0o644)
    done("token", "create", "x", "--dir", str(tmp_path))
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600


@pytest.mark.parametrize("wrong", ["", "rw", "8", "1777", "0o77"])
def test_a_umask_that_is_none_is_told(tmp_path: Path, wrong: str) -> None:
    process = command("token", "keys", "--dir", str(tmp_path), env=os.environ | {"STATESIDE_UMASK": wrong})
    assert "which is no umask" in process.communicate(timeout=60)[1]
    assert process.returncode == 1
