"""The follower: views that appear while a server runs, replicas elsewhere, and folders that it may not write to."""

from __future__ import annotations

import logging
import shutil
import sys
import tarfile
from functools import partial
from pathlib import Path

import httpx
import pytest

from stateside.core.layout import Layout
from stateside.core.processes import Child, free_port
from stateside.serving.follower import Follower
from tests.disks import mounted, remount
from tests.waiting import wait_until


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with the views `hourly` and `spending`."""
    with tarfile.open(Path(__file__).parents[1] / "compatibility" / "v0.1.0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "shop"


def test_a_view_that_appears_later_is_reported_once(shop: Path, caplog: pytest.LogCaptureFixture) -> None:
    aside = shop.parent / "hourly"
    (shop / "views" / "hourly").rename(aside)
    with caplog.at_level(logging.WARNING), Follower(Layout(shop)):
        wait_until(lambda: (shop / "views" / "spending" / "replica").exists())
        assert "served from now on" not in caplog.text, "those that were there at the start are not news"
        aside.rename(shop / "views" / "hourly")
        wait_until(lambda: "view hourly: it is new, and served from now on" in caplog.text)
    assert caplog.text.count("served from now on") == 1


def test_a_disk_that_becomes_read_only_is_told_once_without_a_stack_trace(
    shop: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted(tmp_path / "disk", "20m") as disk:
        shutil.copytree(shop, disk / "shop", symlinks=True)
        remount(disk, "ro")
        follower = Follower(Layout(disk / "shop"))
        for _ in range(3):
            follower._look()
    assert caplog.text.count("view spending: ") == 1
    assert "Traceback" not in caplog.text


@pytest.mark.e2e
def test_two_servers_of_one_folder_have_a_replica_each_where_they_are_told_to(shop: Path, tmp_path: Path) -> None:
    for keys in (shop / "keys.json", shop / "issued.json"):
        keys.unlink()  # open on this machine
    urls, children, found = [], [], []
    for name in ("one", "two"):
        urls.append(f"http://127.0.0.1:{(port := free_port())}")
        command = [sys.executable, "-m", "stateside", "serve", "--dir", str(shop), "--replicas", str(tmp_path / name)]
        children.append(Child([*command, "--port", str(port)], tmp_path / f"{name}.log"))
    try:
        for url, child in zip(urls, children, strict=True):
            wait_until(partial(is_ready, url), child.tail)
            answer = httpx.get(f"{url}/v1/views/spending/rows")
            assert answer.status_code == 200, answer.text
            found.append(answer.json()["rows"])
            counted = httpx.post(f"{url}/v1/sql", json={"sql": "SELECT count(*) FROM spending"}, timeout=60)
            assert counted.json().get("rows") == [[len(answer.json()["rows"])]], counted.text
    finally:
        for child in children:
            child.stop()
    assert found[0] == found[1] != []
    assert not (shop / "views" / "spending" / "replica").exists()
    assert (tmp_path / "two" / "views" / "spending" / "replica").is_dir()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False
