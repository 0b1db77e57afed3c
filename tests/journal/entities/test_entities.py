"""Entities as who asks has them: own writes, others' writes, refusals, repetitions, bounds."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stateside.core.errors import CommandRefused, EventRefused, NotFreshEnough, SequenceConflict
from stateside.core.positions import Position
from stateside.journal import Event, JournalWriter, Upcasters
from stateside.journal.backends.files.file_journal import FileJournal
from stateside.journal.entities import Entities, Entity, NewEvent, commands
from stateside.journal.queries import Queries, QueryViews
from tests.journal.entities.accounts import Account, Balance, Pay, bank, paid
from tests.journal.old_format import write_old


def test_who_asks_reads_own_writes_at_once(tmp_path: Path) -> None:
    with bank(tmp_path) as b:
        accounts = b.accounts()
        assert accounts.look("emma").state == Balance()
        done = accounts.ask("emma", Pay(5, parts=2))
        assert (done.state.cents, done.sequence, done.receipt.first_sequence) == (10, 2, 1)
        assert [(event.sequence, event.payload) for event in done.events] == [(1, {"cents": 5}), (2, {"cents": 5})]
        assert b.queries.stream.end().covers(done.receipt.position)
        assert b.accounts().look("emma").state == done.state == b.model("emma")


def test_what_others_appended_is_seen_by_the_next_command(tmp_path: Path) -> None:
    with bank(tmp_path) as b, JournalWriter(tmp_path / "journal") as other:
        accounts = b.accounts()
        accounts.ask("emma", Pay(5))
        other.append([paid("o1", "emma", 100), paid("o2", "otto", 7)])
        assert accounts.ask("emma", Pay(-90)).state.cents == 15
        assert accounts.look("otto").state.cents == 7
        assert accounts.look("emma").state == b.model("emma")


def test_a_refusal_is_of_the_state_as_it_is_not_of_one_in_memory(tmp_path: Path) -> None:
    with bank(tmp_path) as b, JournalWriter(tmp_path / "journal") as other:
        accounts = b.accounts()
        accounts.ask("emma", Pay(5))
        with pytest.raises(CommandRefused, match="5 cents only"):
            accounts.ask("emma", Pay(-6))
        other.append([paid("o1", "emma", 1)])
        assert accounts.ask("emma", Pay(-6)).state.cents == 0
        other.append([paid("o2", "emma", 2)])
        with pytest.raises(CommandRefused, match="2 cents only"):
            accounts.ask("emma", Pay(-6))
        assert b.queries.stream.end()["0"] == 4


def test_a_command_without_events_stores_nothing_and_tells_the_state_as_it_is(tmp_path: Path) -> None:
    with bank(tmp_path) as b, JournalWriter(tmp_path / "journal") as other:
        accounts = b.accounts()
        accounts.ask("emma", Pay(5))
        other.append([paid("o1", "emma", 1)])
        done = accounts.ask("emma", Pay(3, parts=0))
        assert (done.state.cents, done.sequence, done.events) == (6, 2, ())
        assert b.queries.stream.end()["0"] == 2


def test_threads_that_ask_the_same_entity_lose_nothing(tmp_path: Path) -> None:
    with bank(tmp_path) as b:
        several = [b.accounts(conflicts_max=1_000) for _ in range(2)]  # they know nothing of each other, and conflict

        def ask(number: int) -> None:
            for _ in range(25):
                several[number % 2].ask("emma", Pay(1))

        threads = [threading.Thread(target=ask, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [accounts.look("emma").state.cents for accounts in several] == [100, 100]
        assert several[0].look("emma").state == b.model("emma")


def test_who_is_never_first_is_told_after_so_many_conflicts(tmp_path: Path) -> None:
    with bank(tmp_path) as b, JournalWriter(tmp_path / "journal") as other:

        class Overtaken(Account):
            def decide(self, state: Balance, command: Pay) -> Sequence[NewEvent]:
                other.append([paid(f"o{state.events}", "emma", 1)])
                return super().decide(state, command)

        with pytest.raises(SequenceConflict):
            b.accounts(Overtaken(), conflicts_max=3).ask("emma", Pay(5))
        assert b.accounts().look("emma").state.cents == 4


def test_the_same_command_again_is_answered_with_what_became_of_it(tmp_path: Path) -> None:
    with bank(tmp_path) as b:
        accounts = b.accounts()
        accounts.ask("emma", Pay(5))
        first = accounts.ask("emma", Pay(-2, parts=2), command_id="c1")
        accounts.ask("emma", Pay(-1))
        for again in (accounts, b.accounts()):
            done = again.ask("emma", Pay(-2, parts=2), command_id="c1")  # which would be refused by now
            assert (done.receipt, done.events) == (first.receipt, first.events)
            assert (done.state.cents, done.sequence) == (0, 4)
        with pytest.raises(EventRefused, match="emma"):
            accounts.ask("otto", Pay(1), command_id="c1")


@pytest.mark.parametrize("parts", [1, 2, 3])  # there it makes two events
@pytest.mark.parametrize("before", [0, 1])
def test_a_command_that_another_process_carries_out_meanwhile_is_carried_out_once(
    tmp_path: Path, parts: int, before: int
) -> None:
    with bank(tmp_path) as b, JournalWriter(tmp_path / "journal") as other:

        class Raced(Account):
            def decide(self, state: Balance, command: Pay) -> Sequence[NewEvent]:
                other.append_once([paid(f"o{number}", "emma", 1) for number in range(before)])
                other.append_once([paid(f"c9.{number}", "emma", 4) for number in (1, 2)])
                return super().decide(state, command)

        accounts = b.accounts(Raced())
        done = accounts.ask("emma", Pay(9, parts), command_id="c9")
        assert (done.receipt.first_sequence, done.receipt.last_sequence) == (before + 1, before + 2)
        assert [event.payload["cents"] for event in done.events] == [4, 4]
        assert done.state == accounts.look("emma").state == b.model("emma")
        assert b.queries.stream.end()["0"] == before + 2


def test_events_that_cannot_be_folded_or_stored_are_not_stored(tmp_path: Path) -> None:
    class Broken(Account):
        def fold(self, state: Balance, event: Event) -> Balance:
            raise KeyError("cents")

    class Huge(Account):
        def decide(self, state: Balance, command: Pay) -> Sequence[NewEvent]:
            return [NewEvent("paid", {"cents": 1}), NewEvent("paid", {"text": "x" * 70_000})]

    with bank(tmp_path) as b:
        with pytest.raises(KeyError) as raised:
            b.accounts(Broken()).ask("emma", Pay(1))
        assert "Broken folded event 1 of 'emma'" in raised.value.__notes__[0]
        with pytest.raises(EventRefused, match="70"):
            b.accounts(Huge()).ask("emma", Pay(1))
        assert b.queries.stream.end()["0"] == 0


def test_so_many_entities_are_in_memory_and_the_least_recently_used_goes(tmp_path: Path) -> None:
    with bank(tmp_path) as b:
        kind = Account()
        accounts = b.accounts(kind, active_max=3, snapshots=None)
        for name in "abc":
            accounts.ask(name, Pay(1))
        accounts.look("a")
        accounts.ask("d", Pay(1))
        assert accounts.active == 3
        accounts.look("nobody")
        assert accounts.active == 3
        kind.folded = 0
        assert [accounts.look(name).state.cents for name in "acd"] == [1, 1, 1]
        assert kind.folded == 0
        assert accounts.look("b").state.cents == 1
        assert kind.folded == 1


def test_a_state_is_folded_from_events_as_they_are_read(tmp_path: Path) -> None:
    class Payloads(Entity[list[Any], Any]):
        def initial(self) -> list[Any]:
            return []

        def fold(self, state: list[Any], event: Event) -> list[Any]:
            return [*state, (event.version, event.payload, event.tags, dict(event.metadata), event.time_us)]

        def decide(self, state: list[Any], command: Any) -> Sequence[NewEvent]:
            return [NewEvent("noted", command, ["t"], metadata={"by": "me"})]  # type: ignore[arg-type]

    upcasters = Upcasters()
    upcasters.register("noted", 1, lambda payload: {"value": payload["old"]})
    with bank(tmp_path) as b:
        queries = Queries(b.views.stream, b.views, upcasters)
        notes: Entities[list[Any], Any] = Entities(b.writer, queries, Payloads())
        asked = notes.ask("emma", {"old": (1, 2.5, None)})
        assert asked.state[0][:4] == (2, {"value": [1, 2.5, None]}, ("t",), {"by": "me"})
        assert Entities(b.writer, queries, Payloads()).look("emma").state == asked.state


class Lagging(FileJournal):
    """A stream that is behind its writer, as a merged one may be."""

    limit = 0

    def end(self) -> Position:
        return Position.of({"0": min(self.limit, super().end()["0"])})


def test_a_stream_that_is_behind_its_writer_is_waited_for_and_told_of_if_it_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bank(tmp_path) as b:
        stream = Lagging(tmp_path / "journal")
        with QueryViews(stream, tmp_path / "lagging") as views:
            accounts = Entities(b.writer, Queries(stream, views), Account())
            accounts.ask("emma", Pay(1))
            b.writer.append([paid("o1", "emma", 2)])
            threading.Timer(0.1, lambda: setattr(stream, "limit", 2)).start()
            assert accounts.look("emma").state == b.model("emma")
            monkeypatch.setattr(commands, "WAIT_S_MAX", 0.05)
            b.writer.append([paid("o2", "emma", 3), paid("o3", "otto", 4)])
            for entity, reached, sequence in (("emma", 2, 3), ("otto", 0, 1)):
                with pytest.raises(NotFreshEnough, match=f"up to sequence {reached} only, its writer up to {sequence}"):
                    accounts.look(entity)


def test_events_from_before_there_were_sequences_count(tmp_path: Path) -> None:
    write_old(tmp_path / "journal", [[paid("a", "emma", 1), paid("b", "otto", 2)], [paid("c", "emma", 3)]])
    with bank(tmp_path) as b:
        accounts = b.accounts(snapshot_every=1)
        assert accounts.ask("emma", Pay(-4)).sequence == 3
        assert b.accounts().look("emma").state == b.model("emma")
        b.views.follow()
        assert [b.accounts(snapshots=None).look(name).sequence for name in ("emma", "otto")] == [3, 1]
