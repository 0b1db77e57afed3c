"""The calls of both clients, as steps: requests go to the servers with the keys, answers of shards are combined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from stateside.core.errors import KeyInvalid, Misdirected, RequestInvalid, StatesideError
from stateside.core.positions import Position
from stateside.journal.event import Event
from stateside.serving.clients import requests
from stateside.serving.clients.answers import Answer, Change, Location, Lookup, Row, SqlAnswer
from stateside.serving.clients.core import Core, Whom
from stateside.serving.clients.requests import ClientFloor, Parameters, Part, of_path, of_view, other_parameters, texts
from stateside.serving.clients.scans import PAGE_ROWS, ClientScan, ScanQuestion
from stateside.serving.clients.shards import ShardRequest, Shards, SharesChanged, added_up, by_key
from stateside.serving.clients.steps import Ask, Deliver, NextLine, NoReply, Reply, Steps
from stateside.serving.clients.transport import Lines, ServerSentEvent, object_of, problem_error, unanswered
from stateside.serving.stamp import Source, Stamp

KEYS_MAX = 1_000  # in one request; more keys are sent in several
SQL_MS = 30_000  # a statement's default timeout
SILENCE_S: Final = 45.0  # of a change stream; servers send keep-alives more often


class Calls:
    """The methods of both clients, over one core. Each returns steps: a client runs the steps and returns the result.

    `scan` and `watch` return steps that deliver values.
    """

    def __init__(self, core: Core) -> None:
        self._core, self._places = core, Shards(core)

    # Calls by key

    def rows(
        self,
        view: str,
        *key: Part,
        source: Source | None = None,
        min_position: Position | str | None = None,
        max_age_ms: int | None = None,
        wait_ms: int | None = None,
        as_of: int | None = None,
    ) -> Steps[Answer]:
        """The rows of one key, or of a key prefix: live rows, sealed rows, or by default both."""
        floor = ClientFloor(min_position, max_age_ms, wait_ms, as_of)
        parts = texts(key)
        ask = partial(of_view, view, "rows", parts, more=_of(source))
        deadline_s = self._core.deadline(ask(floor))
        course = partial(self._rows, view, parts, ask, floor, deadline_s)
        return (yield from self._places.anew(course, SharesChanged, deadline_s))

    def lookup(
        self,
        view: str,
        keys: Sequence[Sequence[Part] | str],
        *,
        min_position: Position | str | None = None,
        max_age_ms: int | None = None,
        wait_ms: int | None = None,
        as_of: int | None = None,
    ) -> Steps[Lookup]:
        """The rows of many whole keys, of one batch; `found` is in the order of the keys."""
        floor = ClientFloor(min_position, max_age_ms, wait_ms, as_of)
        whole = [[key] if isinstance(key, str) else texts(key) for key in keys]
        if not whole:
            raise RequestInvalid("There is no key to look up", next_step="Give one at least")
        deadline_s = self._core.deadline(of_view(view, "lookup", (), floor))
        course = partial(self._lookup, view, whole, floor, deadline_s)
        return (yield from self._places.anew(course, Misdirected, deadline_s))

    def scan(
        self,
        view: str,
        *key: Part,
        where: Sequence[str] = (),
        order: str | None = None,
        columns: Sequence[str] | None = None,
        page_rows: int = PAGE_ROWS,
        rows_max: int | None = None,
        source: Source | None = None,
        min_position: Position | str | None = None,
        max_age_ms: int | None = None,
        wait_ms: int | None = None,
        as_of: int | None = None,
    ) -> Steps[None]:
        """The rows page by page, all of one batch, restricted to a key prefix and to all predicates in `where`."""
        floor = ClientFloor(min_position, max_age_ms, wait_ms, as_of)
        question = ScanQuestion(view, texts(key), tuple(where), order, columns, page_rows, rows_max, floor, source)
        return ClientScan(self._places, question).pages()

    def watch(
        self,
        view: str,
        *key: Part,
        rollup: Sequence[str] | None = None,
        source: Source | None = None,
        after: str | None = None,
    ) -> Steps[None]:
        """The present rows, then the changes of every batch; reconnects after a broken connection.

        `after` is the id of the last change of an earlier watch. Close the iterator to stop.
        """
        return ClientWatch(self._places, WatchQuestion(view, texts(key), rollup, after, source)).changes()

    def sum(
        self,
        view: str,
        *key: Part,
        from_time: Part | None = None,
        to_time: Part | None = None,
        last: str | None = None,
        source: Source | None = None,
        min_position: Position | str | None = None,
        max_age_ms: int | None = None,
        wait_ms: int | None = None,
        as_of: int | None = None,
    ) -> Steps[Answer]:
        """The buckets of one key in a time range, or over the last hours or days ("24h"), combined into one row."""
        floor = ClientFloor(min_position, max_age_ms, wait_ms, as_of)
        parts, span = texts(key), (("from", from_time), ("to", to_time), ("last", last), ("source", source))
        given = {name: value for name, value in span if value is not None}
        ask = of_view(view, "sum", parts, floor, other_parameters(given))
        yield from self._core.look(self._core.deadline(ask))
        return (yield from self._core.read(ask, self._answer(view), self._places.one_place(view, parts)))

    def locate(self, view: str, *key: Part) -> Steps[Location]:
        """The shard of a key, and the servers with the shard."""
        ask = of_view(view, "location", texts(key), ClientFloor())
        return (yield from self._core.read(ask, lambda told: Location(told["share"], told["servers"])))

    # Calls to all shards

    def rollup(
        self,
        view: str,
        columns: Sequence[str],
        *key: Part,
        source: Source | None = None,
        min_position: Position | str | None = None,
        max_age_ms: int | None = None,
        wait_ms: int | None = None,
        as_of: int | None = None,
    ) -> Steps[Answer]:
        """A rollup: the view's rows summed by these columns, for one coarser key or a prefix of the coarser key."""
        floor = ClientFloor(min_position, max_age_ms, wait_ms, as_of)
        ask = partial(of_view, view, requests.rollup_path(columns), texts(key), more=_of(source))
        deadline_s = self._core.deadline(ask(floor))
        course = partial(self._rollup, view, columns, ask, floor, deadline_s, _of(source))
        return (yield from self._places.anew(course, SharesChanged, deadline_s))

    # Calls to any server

    def views(self) -> Steps[list[dict[str, Any]]]:
        """The served views, each with the state of its job."""
        return (yield from self._core.read(Ask("GET", "/v1/views"), lambda told: list(told["views"])))

    def servers(self) -> Steps[list[dict[str, Any]]]:
        """The servers, and the shards of each."""
        return (yield from self._core.read(Ask("GET", "/v1/servers"), lambda told: list(told["servers"])))

    def get(
        self,
        /,
        path: str,
        *,
        min_position: Position | str | None = None,
        wait_ms: int | None = None,
        **parameters: Part,
    ) -> Steps[dict[str, Any]]:
        """The JSON document at a path, such as a bill."""
        ask = of_path(path, parameters, ClientFloor(min_position, None, wait_ms))
        return (yield from self._core.read(ask, dict))

    def content(
        self,
        /,
        path: str,
        *,
        min_position: Position | str | None = None,
        wait_ms: int | None = None,
        **parameters: Part,
    ) -> Steps[bytes]:
        """The content at a path, such as a PDF."""
        reply: Reply
        _, reply = yield from self._core.reply(of_path(path, parameters, ClientFloor(min_position, None, wait_ms)))
        return reply.content

    def sql(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        rows_max: int | None = None,
        timeout_ms: int | None = None,
    ) -> Steps[SqlAnswer]:
        """The result of a statement, over one snapshot of each view in the statement.

        Goes to a server with all keys, or with the shard that has the token's rows. RequestInvalid without such a
        server.
        """
        limits = {"rows_max": rows_max, "timeout_ms": timeout_ms}
        document: dict[str, Any] = {"sql": sql, "parameters": list(parameters), "format": "json"}
        document |= {name: value for name, value in limits.items() if value is not None}
        ask = requests.posted("/v1/sql", document, wait_s=(timeout_ms or SQL_MS) / 1_000)
        deadline_s = self._core.deadline(ask)
        yield from self._core.look(deadline_s)
        try:
            return (yield from self._core.read(ask, SqlAnswer.of, self._places.with_all_keys(), deadline_s))
        except Misdirected as error:
            if not self._core.locations.named_by(error):
                raise _of_shares() from error
            return (yield from self._core.read(ask, SqlAnswer.of, self._places.named_by(error), deadline_s))

    def append(self, events: Sequence[Event | Mapping[str, Any]]) -> Steps[Position]:
        """Append events, each stored once even if sent repeatedly; returns the receipt, for `min_position`.

        More than 1,000 events go in several consecutive requests. If a request fails, the error reports how many events
        are stored: all of the earlier requests, none of the later ones.
        """
        stored, receipt = 0, Position.start()
        for count, ask in requests.appended(events):
            try:
                receipt = receipt.joined((yield from self._core.read(ask, _receipt)))
            except StatesideError as error:
                raise _partly(error, stored, len(events)) from error
            stored += count
        return receipt

    # How the calls are answered

    def _put_together(self, view: str, answers: Sequence[Answer]) -> Answer:
        """The rows of several shards in key order; KeyInvalid if a shard has more rows than one answer."""
        if any(answer.cursor is not None for answer in answers):
            raise KeyInvalid("There are more of these rows than one answer holds", next_step="Scan them, page by page")
        rows = sorted((row for answer in answers for row in answer.rows), key=by_key(self._places.key(view)))
        return Answer.together(rows, [answer.stamp for answer in answers], self._places.types(view))

    def _rows(
        self, view: str, parts: Sequence[str], ask: Callable[[ClientFloor], Ask], floor: ClientFloor, deadline_s: float
    ) -> Steps[Answer]:
        make = self._answer(view)
        places = self._places.of(view, parts)
        if len(places) == 1:
            return (yield from self._core.read(ask(floor), make, places[0].whom, deadline_s))
        try:
            answers = yield from self._places.at_one_batch(self._places.asked_of(places, ask), make, floor, deadline_s)
        except Misdirected as error:  # the token's scope is all in one shard
            return (yield from self._core.read(ask(floor), make, self._places.named_by(error), deadline_s))
        return self._put_together(view, answers)

    def _lookup(self, view: str, keys: Sequence[Sequence[str]], floor: ClientFloor, deadline_s: float) -> Steps[Lookup]:
        groups = self._by_place(view, keys)
        asked = [self._lookup_asked(view, [keys[index] for index in group]) for group in groups]
        answers = yield from self._places.at_one_batch(asked, Lookup.of, floor, deadline_s)
        found: list[Row | None] = [None] * len(keys)
        for group, answer in zip(groups, answers, strict=True):
            for index, row in zip(group, answer.found, strict=True):
                found[index] = row
        return Lookup.together_found(found, [answer.stamp for answer in answers], self._places.types(view))

    def _rollup(
        self,
        view: str,
        columns: Sequence[str],
        ask: Callable[..., Ask],
        floor: ClientFloor,
        deadline_s: float,
        source: Parameters,
    ) -> Steps[Answer]:
        shares = self._places.shares(view)
        if len(shares) == 1:
            return (yield from self._core.read(ask(floor), self._answer(view), shares[0].whom, deadline_s))
        asked = self._places.asked_of(shares, partial(ask, more=(*source, ("tallies", "1"))))
        answers = yield from self._places.at_one_batch(asked, Answer.of, floor, deadline_s)
        rows = added_up([answer.document for answer in answers], columns, self._places.key(view))
        whole = Answer.together(rows, [answer.stamp for answer in answers], self._places.types(view))
        lacking = answers[0].document.get("not_in_rollups")
        return replace(whole, document={**whole.document, "not_in_rollups": lacking}) if lacking else whole

    def _by_place(self, view: str, keys: Sequence[Sequence[str]]) -> list[list[int]]:
        """The indexes of the keys, grouped by their servers, in groups of at most KEYS_MAX."""
        groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for index, parts in enumerate(keys):
            groups[tuple(self._core.locations.of_key(view, parts, self._core.clock()))].append(index)
        return [group[at : at + KEYS_MAX] for group in groups.values() for at in range(0, len(group), KEYS_MAX)]

    def _lookup_asked(self, view: str, keys: Sequence[Sequence[str]]) -> ShardRequest:
        path, whom = of_view(view, "lookup", (), ClientFloor()).path, self._places.whom(view, keys[0])
        body = {"keys": keys}
        return ShardRequest(
            replace(whom, follow=False),
            lambda floor: requests.posted(path, body, floor.parameters(), wait_s=floor.wait_s),
        )

    def _answer(self, view: str) -> Callable[[Mapping[str, Any]], Answer]:
        return lambda document: Answer.of(document, self._places.types(view))


def _of(source: Source | None) -> Parameters:
    return () if source is None else (("source", source),)


def _of_shares() -> RequestInvalid:
    return RequestInvalid(
        "Each server has a share of the keys, and a statement is asked of all of them",
        next_step="Start a server without --share",
    )


def _receipt(told: Mapping[str, Any]) -> Position:
    return Position.parse(told["receipt"])


def _partly(error: StatesideError, stored: int, count: int) -> StatesideError:
    """The error of an append, with the number of events stored before."""
    if stored:
        error.what = f"{error.what.rstrip('.')}. The first {stored:,} of {count:,} events are stored"
        error.args = (error.sentence(),)
    return error


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
    """One watch. Delivers changes until the caller stops, or no server is available until the deadline.

    After a broken or ended connection the client reconnects, to a copy if need be, with the id of the last event that
    completed a batch. So no change is missed, and none is repeated except those of a half-received batch, which come
    again whole. A half-received snapshot starts over, after a `reset`.
    """

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
