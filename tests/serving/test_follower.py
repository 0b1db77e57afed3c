"""The follower: views that appear while a server runs, and folders that it may not write to."""

from __future__ import annotations

import logging
import shutil
import tarfile
from pathlib import Path

import pytest

from stateside.core.layout import Layout
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
