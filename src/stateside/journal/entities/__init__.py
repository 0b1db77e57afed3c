"""Entities: state folded from an entity's events, and commands that decide the next events.

    class Account(Entity[int, Pay]):
        def initial(self): return 0
        def fold(self, state, event): return state + event.payload["cents"]
        def decide(self, state, command): return [NewEvent("paid", {"cents": command.cents})]

    accounts = Entities(writer, queries, Account(), snapshots=Snapshots(folder))
    accounts.ask("account-7", Pay(500)).state          # 500

`entity` has the base class for users, `commands` the execution of commands, the replay of states and their cache in
memory, `snapshots` the states on disk.
"""

from stateside.journal.entities.commands import CommandOutcome, Entities
from stateside.journal.entities.entity import Entity, NewEvent
from stateside.journal.entities.snapshots import Snapshots

__all__ = ["CommandOutcome", "Entities", "Entity", "NewEvent", "Snapshots"]
