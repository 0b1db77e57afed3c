"""Entity: the base class of a user's kinds of entities. All methods are pure: equal arguments give equal results."""

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
    """An event decided by a command. Entity, id and sequence are assigned when the event is stored.

    `time_us`: when the event happened; default: the time of storing.
    """

    type: str
    payload: Any
    tags: tuple[str, ...] = ()
    _: KW_ONLY
    time_us: int | None = None
    version: int = 1
    metadata: Mapping[str, str] = field(default_factory=dict)


class Entity(ABC, Generic[State, Command]):
    """A kind of entities. Any thread calls the methods, as often as needed; they must not mutate their arguments.

    `version` is the version of the fold: increase it whenever `initial`, `fold`, `dump` or `load` would make another
    state of the same events. Snapshots of another version are not used. States must be comparable with `==`.
    """

    version: ClassVar[int] = 1

    @property
    def kind(self) -> str:
        """The kind's name in snapshots and messages."""
        return type(self).__name__

    @abstractmethod
    def initial(self) -> State:
        """The state of an entity without events."""

    @abstractmethod
    def fold(self, state: State, event: Event) -> State:
        """The state after one more event. Must accept every event of the entity, including unknown types.

        The event has its sequence, but no `appended_us`: a state that depended on the append time would be unknown
        before the event is stored.
        """

    @abstractmethod
    def decide(self, state: State, command: Command) -> Sequence[NewEvent]:
        """The events that a command causes in this state: stored together; possibly none.

        Any exception refuses the command (`CommandRefused` exists for this purpose), and is raised to the caller. May
        be called several times for one command, each time with a newer state.
        """

    def dump(self, state: State) -> Any:
        """The state as JSON values (objects, lists, texts, numbers), for snapshots. Default: the state itself."""
        return state

    def load(self, dumped: Any) -> State:
        """The inverse of `dump`."""
        return dumped  # type: ignore[no-any-return]
