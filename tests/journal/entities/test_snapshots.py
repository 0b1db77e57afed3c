"""Snapshots of entities: used when they are right, and never needed."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stateside.core.errors import SettingInvalid
from stateside.journal import JournalWriter
from stateside.journal.entities import Snapshots
from tests.journal.entities.accounts import Account, Balance, Pay, bank, paid
from tests.sizes import sized


def folds(folder: Path, version: int = 1) -> int:
    """How many events are folded to find the state; which is right."""
    with bank(folder) as b:
        kind = Account(version)
        assert b.accounts(kind).look("emma").state == b.model("emma", version)
        return kind.folded


def fill(folder: Path, events: int = 25) -> None:
    with bank(folder) as b:
        accounts = b.accounts()
        for _ in range(events):
            accounts.ask("emma", Pay(1))


def test_a_replay_begins_with_the_snapshot(tmp_path: Path) -> None:
    fill(tmp_path)
    assert folds(tmp_path) == 5


def test_a_long_replay_leaves_a_snapshot(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "journal") as writer:
        writer.append([paid(f"o{number}", "emma", number) for number in range(50)])
    assert [folds(tmp_path), folds(tmp_path)] == [50, 0]


def test_snapshots_of_another_fold_are_not_used(tmp_path: Path) -> None:
    fill(tmp_path)
    assert [folds(tmp_path, version=2), folds(tmp_path, version=2), folds(tmp_path, version=1)] == [25, 0, 25]


def test_snapshots_of_another_journal_are_not_used_even_if_its_events_have_the_same_ids(tmp_path: Path) -> None:
    for cents in (1, 3):
        shutil.rmtree(tmp_path / "journal", ignore_errors=True)
        with JournalWriter(tmp_path / "journal") as writer:
            writer.append([paid(f"o{number}", "emma", cents) for number in range(30)])
        assert [folds(tmp_path), folds(tmp_path)] == [30, 0]


@pytest.mark.parametrize("lived", [15, 20, 22])
def test_snapshots_ahead_of_a_log_that_was_put_back_are_not_used(tmp_path: Path, lived: int) -> None:
    fill(tmp_path, 15)
    shutil.copytree(tmp_path / "journal", tmp_path / "copy")
    fill(tmp_path, 5)  # the snapshot is of event 20
    shutil.rmtree(tmp_path / "journal")
    (tmp_path / "copy").rename(tmp_path / "journal")
    with JournalWriter(tmp_path / "journal") as writer:
        writer.append([paid(f"o{number}", "emma", 3) for number in range(15, lived)])
    assert folds(tmp_path) == lived


def test_damaged_snapshots_cost_a_replay_and_nothing_else(tmp_path: Path) -> None:
    fill(tmp_path)
    path = tmp_path / "snapshots" / "data.mdb"
    whole = path.read_bytes()
    assert b'"cents":20' in whole
    for damaged in (
        whole.replace(b'"cents":20', b'"cents":21'),
        whole.replace(b'"cents"', b'"dents"'),
        b"x" * 50_000,
        b"",
        whole[:5000],
    ):
        path.write_bytes(damaged)
        assert folds(tmp_path) == 25
    path.unlink()
    assert folds(tmp_path) == 25


def test_snapshots_that_are_cut_or_deleted_under_who_asks_end_no_process(tmp_path: Path) -> None:
    fill(tmp_path)
    with bank(tmp_path) as b:
        for size in (12_000, 4_096, 0):
            os.truncate(tmp_path / "snapshots" / "data.mdb", size)
            assert b.accounts().look("emma").state == b.model("emma")
            b.accounts(snapshot_every=1).ask("emma", Pay(1))
        (tmp_path / "snapshots" / "data.mdb").unlink()
        assert b.accounts().look("emma").state == b.model("emma")


def test_where_no_snapshots_can_be_kept_entities_go_on_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with bank(tmp_path) as b, Snapshots(tmp_path / "file" / "snapshots") as nowhere:
        accounts = b.accounts(snapshots=nowhere, snapshot_every=1)
        accounts.ask("emma", Pay(1))
        assert b.accounts(snapshots=nowhere).look("emma").state == b.model("emma")
    assert "there are no snapshots in" in caplog.text


def test_a_process_opens_snapshots_once(tmp_path: Path) -> None:
    with Snapshots(tmp_path), pytest.raises(SettingInvalid, match="Share the one"):
        Snapshots(tmp_path)


def test_kinds_share_snapshots_and_have_their_own(tmp_path: Path) -> None:
    class Savings(Account):
        pass

    with bank(tmp_path) as b:
        b.writer.append([paid("o", "emma", 3)])
        for kind in (Account(), Savings(version=2)):
            b.accounts(kind, snapshot_every=1).look("emma")
        for again in (Account(), Savings(version=2)):
            assert b.accounts(again).look("emma").state == b.model("emma", again.version)
            assert again.folded == 0


def test_a_state_that_would_be_read_back_as_another_one_is_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(Account):
        def dump(self, state: Balance) -> Any:
            return {"cents": state.cents}

    class Undumpable(Account):
        def dump(self, state: Balance) -> Any:
            return {"state": state}

    with bank(tmp_path) as b, caplog.at_level(logging.ERROR):
        for kind in (Forgetful(), Undumpable()):
            b.accounts(kind, snapshot_every=1).ask("emma", Pay(1))
            assert f"no snapshots of {kind.kind} are kept" in caplog.text
            assert b.accounts(type(kind)()).look("emma").state == b.model("emma")


ASKING = """
import sys
from pathlib import Path
from tests.journal.entities.accounts import Account, Pay, bank
with bank(Path(sys.argv[1])) as b:
    accounts = b.accounts(snapshot_every=3, active_max=2)
    print("ready", flush=True)
    for number in range(1_000_000):
        done = accounts.ask(f"c{number % 3}", Pay(number, parts=1 + number % 2), command_id=f"k{sys.argv[2]}-{number}")
        print(number, flush=True)
        if number % 20 == 0:
            b.views.follow()
"""


@pytest.mark.e2e
def test_whenever_a_process_is_killed_the_state_is_the_fold_of_the_log_and_no_command_is_half_done(
    tmp_path: Path,
) -> None:
    for life in range(sized(3, 40)):
        process = subprocess.Popen(
            [sys.executable, "-c", ASKING, str(tmp_path), str(life)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.15 + 0.037 * (life % 8))
        process.send_signal(signal.SIGKILL)
        acknowledged = len(process.stdout.read().splitlines())
        process.wait()
        with bank(tmp_path) as b:
            accounts = b.accounts()
            for entity in ("c0", "c1", "c2"):
                assert accounts.look(entity).state == b.model(entity)
            ids = {found.event.id for found in b.queries.all().current()}
            for number in range(acknowledged + 1):
                parts = [f"k{life}-{number}.{part}" in ids for part in range(1, 2 + number % 2)]
                assert all(parts) or (number == acknowledged and not any(parts))
