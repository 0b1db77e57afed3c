"""Entities whose commands are carried out at nodes: each reads its own writes at once, merged or not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stateside.core.errors import NotFreshEnough
from stateside.journal.backends.nodes import MergedJournal, Merger, NodeWriter
from stateside.journal.backends.nodes.ownership import slot_of
from stateside.journal.entities import Entities, Snapshots, commands
from stateside.journal.queries import Queries, QueryViews
from tests.journal.entities.accounts import Account, Balance, Pay


@contextmanager
def accounts(folder: Path, node: NodeWriter) -> Iterator[Entities[Balance, Pay]]:
    stream = MergedJournal(folder)
    with QueryViews(stream, folder / "views") as views, Snapshots(folder / f"snapshots-{node.name}") as snapshots:
        yield Entities(node, Queries(stream, views), Account(), snapshots=snapshots, snapshot_every=2)


def test_own_writes_are_read_while_no_merger_runs(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node:
        with accounts(tmp_path, node) as first:
            assert first.ask("emma", Pay(5, parts=3)).state.cents == 15
        with accounts(tmp_path, node) as second:  # which has nothing in memory
            assert second.look("emma").state.cents == 15
            with Merger(tmp_path) as merger:
                merger.merge()
            assert second.ask("emma", Pay(1)).sequence == 4
        with accounts(tmp_path, node) as third:  # some of it is merged, some is not
            assert third.look("emma").state == Balance(16, 4, third.look("emma").state.mixed)


def test_an_entity_that_moved_goes_on_where_it_was_with_an_image_that_is_older(tmp_path: Path) -> None:
    with (
        NodeWriter(tmp_path, "a") as one,
        NodeWriter(tmp_path, "b") as other,
        accounts(tmp_path, one) as here,
        accounts(tmp_path, other) as there,
    ):
        for expected, (mine, its) in enumerate([(here, one), (there, other), (here, one)], 1):
            done = mine.ask("emma", Pay(5), command_id=f"c{expected}")
            assert (done.state.cents, done.sequence) == (5 * expected, expected)
            its.release([slot_of("emma")])
        again = there.ask("emma", Pay(5), command_id="c1")
        assert (again.receipt.repeated, again.state.cents, [event.id for event in again.events]) == (
            True,
            15,
            ["c1.1"],
        )


def test_what_no_log_and_no_stream_has_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "WAIT_S_MAX", 0.05)
    with NodeWriter(tmp_path, "b") as other:
        other.append_to("emma", [])
        with accounts(tmp_path, other) as there:
            there.ask("emma", Pay(1))
        other.release(other.slots)
    with NodeWriter(tmp_path, "a") as node, accounts(tmp_path, node) as here:
        node.claim([slot_of("emma")])
        (tmp_path / "nodes" / "b").rename(tmp_path / "away")
        with pytest.raises(NotFreshEnough, match="up to sequence 0 only, its writer up to 1"):
            here.look("emma")
