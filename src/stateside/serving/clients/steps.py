"""Steps: what a client does next, as values. The core makes them, a client does them and tells the core what came.

step        what the core is told
Send        Reply, or Silence
Open        Reply, whose content is empty if all is well, or Silence: the body is then asked for line by line
NextLine    a line of it, or None at its end, or Silence
Pause       nothing
Together    what each of several courses of steps came to, in their order; the first error is raised
Deliver     nothing: it is handed to whoever iterates
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")

WAIT_S: Final = 5.0  # for so long a server waits for a floor if nothing else is asked for


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to a server: what is sent, whether it may be sent again, and for how long the server may wait."""

    method: str
    path: str
    parameters: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    repeatable: bool = True
    wait_s: float = WAIT_S
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """Ask a server, once, and have its whole reply within this time."""

    url: str
    ask: Ask
    timeout_s: float


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Ask a server for a stream; `timeout_s` is for how long it may be silent."""

    url: str
    ask: Ask
    timeout_s: float


@dataclass(frozen=True, slots=True)
class NextLine:
    """The next line of the stream."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Do nothing for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Together:
    """Go these courses of steps at the same time."""

    courses: Sequence[Steps[Any]]


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand this over."""

    value: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server replied. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True)
class NoReply:
    """No reply, and why. `sent`: the server may have got the question, and may have done what it says."""

    reason: str
    sent: bool


Step = Send | OpenStream | NextLine | Pause | Together | Deliver
Steps = Generator[Step, Any, T]
