"""The small disks of tests behave as those who use them expect."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.disks import mounted, remount


def test_a_disk_becomes_read_only_as_soon_as_nobody_writes_on_it_any_more(tmp_path: Path) -> None:
    """Spark has a file open now and then: `mount` says then that the disk is busy."""
    with mounted(tmp_path / "disk") as disk:
        with (disk / "open").open("w") as written:
            threading.Timer(0.3, written.close).start()
            remount(disk, "ro")
        with pytest.raises(OSError, match="Read-only"):
            (disk / "new").touch()
