"""Whatever is evicted, restarted, snapshotted, deleted or appended by others: the state is the fold of the log."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stateside.core.errors import CommandRefused
from stateside.journal import JournalWriter, Receipt
from stateside.journal.entities import Entities
from tests.journal.entities.accounts import Account, Balance, Pay, bank, paid
from tests.sizes import examples, sized

NAMES = ["a", "b", "c"]
names = st.sampled_from(NAMES)
who = st.integers(0, 1)


class EntitiesMachine(RuleBasedStateMachine):
    """Two that ask, each with images of its own, a writer that knows of no entities, and the log beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="stateside-entities-"))
        self.version = 1
        self.log: list[tuple[str, int]] = []
        self.commands: dict[str, tuple[str, Pay, Receipt]] = {}
        self.open()

    def open(self) -> None:
        self.stack = ExitStack()
        self.bank = self.stack.enter_context(bank(self.folder))
        self.other = self.stack.enter_context(JournalWriter(self.folder / "journal", durability="written"))
        self.asking = [self.new(), self.new()]

    def new(self) -> Entities[Balance, Pay]:
        return self.bank.accounts(Account(self.version), active_max=2, snapshot_every=3)

    def teardown(self) -> None:
        self.stack.close()
        shutil.rmtree(self.folder)

    def model(self, entity: str) -> Balance:
        state = Balance()
        for name, cents in self.log:
            if name == entity:
                mixed = (state.mixed * 31 + cents * self.version) % 1_000_003
                state = Balance(state.cents + cents, state.events + 1, mixed)
        return state

    @rule(number=who, entity=names, cents=st.integers(-5, 9), parts=st.integers(0, 4))
    def ask(self, number: int, entity: str, cents: int, parts: int) -> None:
        before, id_ = self.model(entity), f"k{len(self.commands)}"
        try:
            done = self.asking[number].ask(entity, Pay(cents, parts), command_id=id_)
        except CommandRefused:
            assert before.cents + cents * parts < 0
            return
        self.log += [(entity, cents)] * parts
        assert (done.state, done.sequence) == (self.model(entity), before.events + parts)
        assert done.receipt.last_sequence == done.sequence
        if parts:
            self.commands[id_] = entity, Pay(cents, parts), done.receipt

    @rule(number=who, data=st.data())
    def ask_again(self, number: int, data: st.DataObject) -> None:
        if self.commands:
            id_ = data.draw(st.sampled_from(sorted(self.commands)))
            entity, command, receipt = self.commands[id_]
            done = self.asking[number].ask(entity, command, command_id=id_)
            assert (done.receipt, done.state) == (receipt, self.model(entity))

    @rule(wanted=st.lists(st.tuples(names, st.integers(0, 9)), min_size=1, max_size=6))
    def others_append(self, wanted: list[tuple[str, int]]) -> None:
        self.other.append([paid(f"o{len(self.log)}-{n}", name, cents) for n, (name, cents) in enumerate(wanted)])
        self.log += wanted

    @rule(number=who, entity=names)
    def look(self, number: int, entity: str) -> None:
        assert self.asking[number].look(entity).state == self.model(entity)

    @rule()
    def follow(self) -> None:
        self.bank.views.follow()

    @rule(number=who)
    def forget_images(self, number: int) -> None:
        self.asking[number] = self.new()

    @rule()
    def restart(self) -> None:
        self.stack.close()
        self.open()

    @rule()
    def delete_snapshots(self) -> None:
        self.stack.close()
        shutil.rmtree(self.folder / "snapshots")
        self.open()

    @rule(version=st.integers(1, 3))
    def fold_otherwise(self, version: int) -> None:
        self.version = version
        self.asking = [self.new(), self.new()]

    @invariant()
    def bounds_hold(self) -> None:
        assert all(asking.active <= 2 for asking in self.asking)


TestEntities = EntitiesMachine.TestCase
TestEntities.settings = settings(max_examples=examples(15, 500), stateful_step_count=sized(30, 60), deadline=None)
