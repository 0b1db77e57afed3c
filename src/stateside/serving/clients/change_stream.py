"""The client side of a change stream, over any number of connections.

After a broken or ended connection the client reconnects, to a copy if need be, with the id of the last event that
completed a batch. So no change is missed, and none is repeated except those of a half-received batch, which come again
whole. A half-received snapshot starts over, after a `reset`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stateside.serving.clients.answers import Change
from stateside.serving.clients.core import Whom
from stateside.serving.clients.requests import ClientFloor, of_view
from stateside.serving.clients.shards import Shards
from stateside.serving.clients.steps import Ask, Deliver, NextLine, NoReply, Steps
from stateside.serving.clients.transport import Lines, ServerSentEvent, object_of, problem_error, unanswered
from stateside.serving.stamp import Stamp

SILENCE_S: Final = 45.0  # servers send keep-alives more often


@dataclass(frozen=True, slots=True)
class WatchQuestion:
    """A subscription: a key prefix, a whole view, or a rollup; `after` is the id to resume at."""

    view: str
    key: Sequence[str]
    rollup: Sequence[str] | None
    after: str | None
    source: str | None = None

    def ask(self, last_id: str | None) -> Ask:
        """The request for a stream."""
        given = {"rollup": None if self.rollup is None else ",".join(self.rollup), "source": self.source}
        more = tuple((name, value) for name, value in given.items() if value is not None)
        ask = of_view(self.view, "changes", self.key, ClientFloor(), more)
        headers = (("accept", "text/event-stream"), *(() if last_id is None else (("last-event-id", last_id),)))
        return Ask(ask.method, ask.path, ask.parameters, headers=headers)


class ClientWatch:
    """One watch. Delivers changes until the caller stops, or no server is available until the deadline."""

    def __init__(self, places: Shards, question: WatchQuestion) -> None:
        self._places, self._question = places, question
        self._last_id = question.after
        self._midway = False  # part of a snapshot was delivered, but not its end

    def changes(self) -> Steps[None]:
        core = self._places.core
        while True:
            ask = self._question.ask(self._last_id)
            yield from core.look(core.deadline(ask))
            url = yield from core.open(ask, self._whom(), SILENCE_S)
            if self._midway:
                self._midway, self._last_id = False, None
                yield Deliver(
                    Change("reset", None, None, [], [], reason="the connection broke before all rows were told")
                )
            yield from self._stream(url)
            core.locations.forget()  # the server that ended the stream may be going away

    def _stream(self, url: str) -> Steps[None]:
        lines = Lines()
        while True:
            line = yield NextLine()
            if line is None or isinstance(line, NoReply):
                return
            event = lines.take(line)
            if event is None:
                continue
            if event.kind == "end" or (event.kind == "cut" and not self._final(event, url)):
                return
            if event.kind in ("snapshot", "changes", "reset"):
                yield Deliver(self._change(event, url))

    def _change(self, event: ServerSentEvent, url: str) -> Change:
        told = object_of(event.data, "an event", url)
        if event.kind == "reset":
            self._midway, self._last_id = False, None
            return Change("reset", None, None, [], [], reason=told.get("detail"))
        try:
            stamp, last = Stamp.of(told["stamp"]), bool(told.get("last", True))
            self._last_id = event.id or self._last_id
            if event.kind == "snapshot":
                self._midway = not last
                return Change("snapshot", event.id, stamp, told["rows"], [], last)
            return Change("changes", event.id, stamp, told["changed"], told["removed"], last)
        except (LookupError, TypeError, ValueError) as error:
            raise unanswered(f"the event is not as it should be: {error!r}", url) from error

    def _final(self, event: ServerSentEvent, url: str) -> bool:
        """Raise the error of a cut that would happen again; False for a client that was only too slow."""
        problem = object_of(event.data, "an event", url).get("problem")
        if isinstance(problem, dict):
            raise problem_error(problem, url)
        return False

    def _whom(self) -> Whom:
        """The servers for the subscription: rollups and unspecific prefixes need a server with all keys."""
        return self._places.one_place(self._question.view, self._question.key if self._question.rollup is None else ())
