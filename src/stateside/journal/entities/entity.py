"""Entity: what a user writes of a kind of entities. All of it is pure: the same arguments give the same result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from stateside.journal.event import Event

State = TypeVar("State")
Command = TypeVar("Command")


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that a command decided on. Its entity, its id and its sequence it gets when it is stored.

    `time_us`: when it happened; the time at which it is stored if it is not given.
    """

    type: str
    payload: Any
    tags: tuple[str, ...] = ()
    _: KW_ONLY
    time_us: int | None = None
    version: int = 1
    metadata: Mapping[str, str] = field(default_factory=dict)


class Entity(ABC, Generic[State, Command]):
    """A kind of entities. Its methods are called by any thread, as often as needed, and change nothing they are given.

    `version` is that of the fold: give it the next number whenever `initial`, `fold`, `dump` or `load` would make
    another state of the same events. Snapshots of another version are not used. States can be compared with `==`.
    """

    version: ClassVar[int] = 1

    @property
    def kind(self) -> str:
        """What the kind is called in snapshots and messages."""
        return type(self).__name__

    @abstractmethod
    def initial(self) -> State:
        """The state of an entity that has no event."""

    @abstractmethod
    def fold(self, state: State, event: Event) -> State:
        """The state after one more event. It must take every event that the entity has, also of types it does not know.

        The event has its sequence, but no `appended_us`: a state that depended on it would not be known before the
        event is stored.
        """

    @abstractmethod
    def decide(self, state: State, command: Command) -> Sequence[NewEvent]:
        """What a command makes happen in this state: some events, stored together, or none.

        Whatever it raises refuses the command (`CommandRefused` is there for it), and goes to who asked. It may be
        called several times for one command, each time with a newer state.
        """

    def dump(self, state: State) -> Any:
        """The state as JSON has it (objects, lists, texts, numbers), for snapshots. As it is, if not overridden."""
        return state

    def load(self, dumped: Any) -> State:
        """The state that `dump` gave this for."""
        return dumped  # type: ignore[no-any-return]
