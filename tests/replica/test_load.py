"""Replicas that start late, or were away for too long, on checkpoints of which Spark deleted the early batches."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stateside.core.errors import CheckpointGap, CheckpointInvalid
from stateside.core.layout import Layout
from stateside.replica import bootstrap
from stateside.replica.store import ReplicaReader
from stateside.replica.tail import Tail
from stateside.testing import answer, rollup
from tests.sizes import in_full, sized

from .retention_driver import EARLY, KINDS, LATE

pytestmark = pytest.mark.spark

STATE = "spark.sql.streaming.stateStore"
SOON = {f"{STATE}.maintenanceInterval": "100ms", f"{STATE}.minDeltasForSnapshot": "2"}
CHECKPOINTS = {
    "ids": SOON,
    "no ids": {**SOON, f"{STATE}.checkpointFormatVersion": "1"},
    "no changelogs": {**SOON, f"{STATE}.rocksdb.changelogCheckpointing.enabled": "false"},
    "default store": {
        **SOON,
        f"{STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
        f"{STATE}.checkpointFormatVersion": "1",
        f"{STATE}.compression.codec": "zstd",
    },
}
VIEWS = {
    "ids": ("spending", "visits", "kinds", "kept"),
    "no ids": ("spending",),
    "no changelogs": ("spending",),
    "default store": ("spending", "visits", "kinds"),
}
DRIVER_S_MAX = 270


@dataclass(frozen=True)
class Made:
    """A folder that a driver left, with the replicas that stood at an early batch, and what Spark says of the last."""

    layout: Layout
    oracle: dict[str, Any]

    def copy(self, to: Path, *, away: bool = False) -> Layout:
        """The folder as it was left; without `away` no replica ever followed it."""
        ignored = () if away else ("replica",)
        shutil.copytree(self.layout.root, to, ignore=shutil.ignore_patterns("spark", *ignored))
        return Layout(to)


_made: dict[str, Made] = {}


@pytest.fixture
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Made once for each kind of checkpoint: a driver takes some seconds."""
    kind = getattr(request, "param", "ids")
    if kind not in _made:
        layout = Layout(tmp_path_factory.mktemp("retention") / "application")
        driver = [sys.executable, str(Path(__file__).with_name("retention_driver.py")), str(layout.root)]
        command = [*driver, json.dumps(CHECKPOINTS[kind]), *VIEWS[kind]]
        subprocess.run(command, check=True, timeout=DRIVER_S_MAX)
        _made[kind] = Made(layout, json.loads((layout.root / "oracle.json").read_text()))
    return _made[kind]


def served(layout: Layout, view: str) -> dict[str, Any]:
    """What a server would answer now, as the oracle has it."""
    found = answer(layout, view)
    name, total = ("entity", "amount" if view == "kept" else "total")
    return {"batch": found.stamp.batch, "rows": sorted([row[name], row[total]] for row in found.rows)}


def stored(layout: Layout, view: str = "spending") -> tuple[int, list[tuple[bytes, bytes]]]:
    """What the replica has, without moving it."""
    reader = ReplicaReader(layout.view(view).replica)
    with reader.snapshot() as snapshot:
        batch = snapshot.batch()
        assert batch is not None
        found = batch.batch, list(snapshot.range(b""))
    reader.close()
    return found


def trouble(layout: Layout) -> str | None:
    """Why the replica does not move, as readers are told."""
    reader = ReplicaReader(layout.view("spending").replica)
    with reader.snapshot() as snapshot:
        found = snapshot.trouble()
    reader.close()
    return found


def left_over(layout: Layout, view: str = "spending") -> list[str]:
    """What lies in the replica's folder and does not belong there after a load."""
    replica = layout.view(view).replica
    current = (replica / "current").read_text() if (replica / "current").exists() else None
    belongs = {"writer.lock", *(["current", current] if current else ["checksums", "data.mdb", "lock.mdb"])}
    return sorted({path.name for path in replica.iterdir()} - belongs)


@pytest.mark.parametrize("made", sized(short=["ids"], full=list(CHECKPOINTS)), indirect=True)
def test_a_replica_that_starts_late_has_what_spark_says_the_state_is(made: Made, tmp_path: Path) -> None:
    layout = made.copy(tmp_path / "late")
    for view, expected in made.oracle.items():
        checkpoint = layout.view(view).checkpoint
        assert not (checkpoint / "commits" / "0").exists(), "Spark deleted nothing: this test shows nothing"
        for partition in (checkpoint / "state" / "0").glob("[0-9]*"):
            assert not [*partition.glob("1_*.changelog"), *partition.glob("1.changelog"), *partition.glob("1.delta")]
        assert expected["rows"]
        assert served(layout, view) == expected
        assert left_over(layout, view) == []


@pytest.mark.parametrize("made", sized(short=["ids"], full=list(CHECKPOINTS)), indirect=True)
def test_a_replica_that_was_away_for_too_long_catches_up_by_a_load(made: Made, tmp_path: Path) -> None:
    layout = made.copy(tmp_path / "away", away=True)
    for view, expected in made.oracle.items():
        assert stored(layout, view)[0] < expected["batch"] - 10
        assert served(layout, view) == expected
        assert left_over(layout, view) == []


@pytest.mark.parametrize("away", [False, True], ids=["starts late", "was away"])
@pytest.mark.parametrize("made", sized(short=["ids"], full=["ids", "default store"]), indirect=True)
def test_a_replica_loaded_from_snapshots_has_the_rollups_of_all_events(made: Made, away: bool, tmp_path: Path) -> None:
    layout = made.copy(tmp_path / "loaded", away=away)
    by_kind = [range(kind, EARLY + LATE, KINDS) for kind in range(KINDS)]
    expected = [{"kind": kind, "total": sum(of), "orders": len(of)} for kind, of in enumerate(by_kind)]
    assert rollup(layout, "kinds", ["kind"]) == expected
    assert rollup(layout, "kinds", []) == [{"total": sum(map(sum, by_kind)), "orders": EARLY + LATE}]
    assert (layout.view("kinds").replica / "current").exists(), "it was not loaded: this test shows nothing"


def test_a_loaded_replica_is_restarted_from_its_own_files(made: Made, tmp_path: Path) -> None:
    layout = made.copy(tmp_path / "late")
    expected = made.oracle["spending"]
    assert served(layout, "spending") == expected
    for zip_file in (layout.view("spending").checkpoint / "state").rglob("*.zip"):
        zip_file.unlink()
    assert served(layout, "spending") == expected


def test_without_a_usable_snapshot_readers_keep_the_last_batch_and_are_told(made: Made, tmp_path: Path) -> None:
    layout = made.copy(tmp_path / "away", away=True)
    before = stored(layout)
    for zip_file in (layout.view("spending").checkpoint / "state").rglob("*.zip"):
        zip_file.unlink()
    tail = Tail(layout.view("spending"))
    with pytest.raises(CheckpointGap, match="no snapshot of the state can replace it"):
        tail.step()
    tail.close()
    assert stored(layout) == before
    assert left_over(layout) == []


@pytest.mark.parametrize(
    ("checksums", "told"), [(True, "is not as Spark wrote it"), (False, "snapshot of the state cannot be read")]
)
def test_a_damaged_snapshot_is_told_and_leaves_the_last_batch_to_readers(
    made: Made, tmp_path: Path, checksums: bool, told: str
) -> None:
    layout = made.copy(tmp_path / "away", away=True)
    before = stored(layout)
    for table in (layout.view("spending").checkpoint / "state").rglob("*.sst"):
        content = bytearray(table.read_bytes())
        content[10] ^= 0xFF
        table.write_bytes(content)
        if not checksums:
            table.with_name(f".{table.name}.crc").unlink()
    tail = Tail(layout.view("spending"))
    with pytest.raises(CheckpointInvalid, match=told):
        tail.step()
    tail.close()
    assert stored(layout) == before
    assert trouble(layout) is None, "it is not being loaded any more"
    assert left_over(layout) == []


class StopsLater(threading.Event):
    """Is set when it is looked at for the second time."""

    looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        return self.looks > 1


def test_a_load_is_given_up_when_the_process_is_to_end(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "ROWS_AT_ONCE", 1)
    layout = made.copy(tmp_path / "away", away=True)
    before = stored(layout)
    Tail(layout.view("spending")).run(StopsLater())
    assert stored(layout) == before
    assert left_over(layout) == []


LOADER = """
import sys
from pathlib import Path
from stateside.core.layout import Layout
from stateside.replica import bootstrap, bootstrap
from stateside.replica.tail import Tail

bootstrap.ROWS_AT_ONCE = 1  # so that there are many moments
bootstrap.RUN_BYTES = bootstrap.PAGE_ROWS = bootstrap.PAGES_AT_ONCE = 1
tail = Tail(Layout(Path(sys.argv[1])).view("spending"))
print("begun", flush=True)
tail.step()
print("done", flush=True)
sys.stdin.read()
"""
KILLS = 12


def start_loader(layout: Layout) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LOADER, str(layout.root)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def test_a_load_killed_at_any_moment_leaves_the_old_replica_or_the_new_one(made: Made, tmp_path: Path) -> None:
    layout = made.copy(tmp_path / "away", away=True)
    early = stored(layout)
    begun_s = time.monotonic()
    with start_loader(layout) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        load_s = time.monotonic() - begun_s
        process.kill()
    late, seen, chance = stored(layout), set(), random.Random(5)
    assert late[0] == made.oracle["spending"]["batch"]
    for _ in range(KILLS):
        if stored(layout) == late:
            shutil.rmtree(layout.view("spending").replica)
            shutil.copytree(made.layout.view("spending").replica, layout.view("spending").replica)
        with start_loader(layout) as process:
            time.sleep(chance.random() * min(load_s, 0.2))
            process.kill()
        assert stored(layout) in (early, late)
        seen.add(stored(layout)[0])
    assert served(layout, "spending") == made.oracle["spending"]
    assert left_over(layout) == []
    assert early[0] in seen, "no kill came before the end of a load"


@in_full("tests/replica/test_faults.py damages such snapshots without Spark")
@pytest.mark.parametrize("made", ["default store"], indirect=True)
def test_a_damaged_snapshot_of_the_default_store_is_told_and_nothing_of_it_is_served(
    made: Made, tmp_path: Path
) -> None:
    """It is compressed without checksums inside: those beside it are secured with it."""
    layout = made.copy(tmp_path / "away", away=True)
    before = stored(layout)
    for file in (layout.view("spending").checkpoint / "state" / "0").rglob("*.snapshot"):
        content = file.read_bytes()
        file.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    tail = Tail(layout.view("spending"))
    with pytest.raises(CheckpointInvalid, match=r"\.snapshot, byte 0"):
        tail.step()
    tail.close()
    assert stored(layout) == before
    assert left_over(layout) == []
