"""Entities of a journal of which retention has dropped events."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stateside.core.errors import EventsGone
from stateside.journal import JournalWriter
from stateside.journal.admin import JournalFiles, drop
from tests.journal.entities.accounts import Account, Bank, Pay, bank, paid
from tests.sizes import not_in_fast


def fill(b: Bank, snapshots_of: str | None = None) -> None:
    """25 events each of emma and ben in segments of five, then one of zoe; a snapshot of one of them at 20."""
    number = iter(range(1_000))
    with JournalWriter(b.folder / "journal", durability="written", segment_bytes_max=1) as writer:
        for turn in range(5):
            for entity in ("emma", "ben"):
                writer.append([paid(f"p{next(number)}", entity, 1) for _ in range(5)])
            if turn == 3 and snapshots_of is not None:
                b.accounts(snapshot_every=20).look(snapshots_of)
        writer.append([paid("z", "zoe", 7)])


def test_an_entity_whose_first_events_are_gone_is_an_error_that_names_them(tmp_path: Path) -> None:
    with bank(tmp_path) as b:
        fill(b)
        drop(JournalFiles(tmp_path / "journal"), 40, [])
        asks: list[Callable[[], object]] = [
            lambda: b.accounts().look("emma"),
            lambda: b.accounts().ask("emma", Pay(1)),
        ]
        for ask in asks:
            with pytest.raises(EventsGone, match=r"Of 'emma' the events with sequences 1 to 20 are gone"):
                ask()
        assert b.writer.end["0"] == 51, "nothing was stored"


@pytest.mark.parametrize("follow", [True, False], ids=["by views", "by the stream alone"])
def test_a_snapshot_that_reaches_up_to_what_is_left_is_enough(tmp_path: Path, follow: bool) -> None:
    """Though the very event that it was made up to is gone."""
    with bank(tmp_path) as b:
        fill(b, snapshots_of="emma")
        if follow:
            b.views.follow()
        drop(JournalFiles(tmp_path / "journal"), 40, [])
        kind = Account()
        assert b.accounts(kind).look("emma").state.cents == 25
        assert kind.folded == 5
        assert b.accounts().ask("emma", Pay(-25)).state.cents == 0


@not_in_fast("a journal of several segments; trimmed ones are here")
def test_a_snapshot_that_is_too_old_is_not_enough(tmp_path: Path) -> None:
    with bank(tmp_path) as b:
        fill(b, snapshots_of="emma")
        drop(JournalFiles(tmp_path / "journal"), 50, [])
        with pytest.raises(EventsGone, match="sequences 21 to 25 are gone"):
            b.accounts().look("emma")


def test_an_entity_of_which_nothing_is_left_lives_on_in_its_snapshot(tmp_path: Path) -> None:
    with bank(tmp_path) as b:
        fill(b, snapshots_of="emma")
        drop(JournalFiles(tmp_path / "journal"), 40, [])
        b.accounts(snapshot_every=1).look("emma")
        drop(JournalFiles(tmp_path / "journal"), 50, [])
        done = b.accounts().ask("emma", Pay(5))
        assert (done.state.cents, done.sequence) == (30, 26)
        assert b.accounts().look("emma").state == done.state


def test_an_image_in_memory_covers_what_was_dropped_meanwhile(tmp_path: Path) -> None:
    with bank(tmp_path) as b:
        fill(b)
        accounts = b.accounts(snapshots=None)
        accounts.look("emma")
        drop(JournalFiles(tmp_path / "journal"), 50, [])
        b.writer.append([paid("more", "emma", 2)])
        assert accounts.look("emma").state.cents == 27


def test_entities_that_began_behind_the_cut_need_no_snapshot(tmp_path: Path) -> None:
    with bank(tmp_path) as b:
        fill(b)
        drop(JournalFiles(tmp_path / "journal"), 40, [])
        assert b.accounts().look("zoe").state.cents == 7
        assert b.accounts().ask("new", Pay(3)).state.cents == 3


def test_a_command_whose_events_are_gone_is_not_carried_out_again(tmp_path: Path) -> None:
    with bank(tmp_path) as b:
        accounts = b.accounts(snapshot_every=1)
        accounts.ask("emma", Pay(3, parts=2), command_id="order-1")
        fill(b)
        accounts.look("emma")
        drop(JournalFiles(tmp_path / "journal"), 52, [])
        with pytest.raises(EventsGone, match="0 to 51 are gone"):
            b.accounts().ask("emma", Pay(3, parts=2), command_id="order-1")
        assert b.writer.end["0"] == 53
