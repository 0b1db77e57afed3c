"""Server-sent events: the lines of a stream as events. Comments and fields of other kinds are passed over."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its kind, its data, and the id that it has, if it has one itself."""

    kind: str
    data: str
    id: str | None


@dataclass
class Lines:
    """Takes lines, and gives an event whenever one is complete."""

    _kind: str = ""
    _data: list[str] = field(default_factory=list)
    _id: str | None = None

    def take(self, line: str) -> Event | None:
        """The event that this line completes, if it does."""
        if not line:
            return self._complete()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = value
        return None

    def _complete(self) -> Event | None:
        event = Event(self._kind or "message", "\n".join(self._data), self._id) if self._data else None
        self._kind, self._data, self._id = "", [], None
        return event
