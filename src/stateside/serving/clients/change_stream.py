"""Watching: a view's changes as they come, over any number of connections.

A connection that breaks, or that the server ends, is made anew, to a copy if need be, with the id of the last event
that completed a batch. So no change is missed, and none is told twice except those of a batch that was broken off in
the middle, which come again whole. A snapshot that was broken off begins anew, after a `reset`.
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

SILENCE_S: Final = 45.0  # servers keep the connection alive more often than that


@dataclass(frozen=True, slots=True)
class WatchQuestion:
    """What is watched: keys that begin so, all of a view, or a rollup; from where on."""

    view: str
    key: Sequence[str]
    rollup: Sequence[str] | None
    after: str | None

    def ask(self, last_id: str | None) -> Ask:
        """The question for a stream."""
        more = () if self.rollup is None else (("rollup", ",".join(self.rollup)),)
        ask = of_view(self.view, "changes", self.key, ClientFloor(), more)
        headers = (("accept", "text/event-stream"), *(() if last_id is None else (("last-event-id", last_id),)))
        return Ask(ask.method, ask.path, ask.parameters, headers=headers)


class ClientWatch:
    """One watch. Delivers changes until whoever watches stops, or no server can be had for as long as the deadline."""

    def __init__(self, places: Shards, question: WatchQuestion) -> None:
        self._places, self._question = places, question
        self._last_id = question.after
        self._midway = False  # a part of a snapshot was told, and not its end

    def changes(self) -> Steps[None]:
        """Deliver what comes."""
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
            core.locations.forget()  # who ended it may be going away

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
        """Raise why the watch was cut off, if it would be again; who was only too slow goes on."""
        problem = object_of(event.data, "an event", url).get("problem")
        if isinstance(problem, dict):
            raise problem_error(problem)
        return False

    def _whom(self) -> Whom:
        """Who has all that is watched: rollups and keys of any place are watched where all keys are."""
        return self._places.one_place(self._question.view, self._question.key if self._question.rollup is None else ())
