"""Steps: the actions of a client, as values. The core yields a step, a client executes it and sends the result back.

step          result
Send          Reply, or NoReply
OpenStream    Reply, with empty content on success, or NoReply: the body is then read line by line
NextLine      a line of the body, or None at its end, or NoReply
Pause         None
Together      the results of several series of steps, in their order; a StatesideError in place of a result
Deliver       None: the value goes to the caller that iterates
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from stateside.core.errors import StatesideError

T = TypeVar("T")

WAIT_S: Final = 5.0  # how long a server waits for a floor by default


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: its content, whether a retry is safe, and how long the server may wait."""

    method: str
    path: str
    parameters: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    repeatable: bool = True
    wait_s: float = WAIT_S
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request once, and read the whole reply within `timeout_s`."""

    url: str
    ask: Ask
    timeout_s: float


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Request a stream; `timeout_s` is the longest silence."""

    url: str
    ask: Ask
    timeout_s: float


@dataclass(frozen=True, slots=True)
class NextLine:
    """Read the next line of the stream."""


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Together:
    """Run several series of steps at the same time."""

    courses: Sequence[Steps[Any]]


@dataclass(frozen=True, slots=True)
class Deliver:
    """Yield a value to the caller."""

    value: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's reply. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True)
class NoReply:
    """No reply, and why. `sent`: the server may have received and executed the request."""

    reason: str
    sent: bool


Step = Send | OpenStream | NextLine | Pause | Together | Deliver
Steps = Generator[Step, Any, T]


def together(courses: Sequence[Steps[T]]) -> Steps[list[T]]:
    """The results of several series of steps, run at the same time; the first error is raised once all have ended."""
    results: list[T | StatesideError] = yield Together(courses)
    for result in results:
        if isinstance(result, StatesideError):
            raise result
    return [result for result in results if not isinstance(result, StatesideError)]
