"""What can be asked, as courses of steps: each question goes to who has the keys, and shares' answers become one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from stateside.errors import (
    HistoryGone,
    KeyInvalid,
    Misdirected,
    NotFreshEnough,
    OperatingError,
    RequestInvalid,
    StatesideError,
)
from stateside.journal.event import Event
from stateside.positions import Position
from stateside.serving.clients import questions
from stateside.serving.clients.answers import Answer, Location, Lookup, Row, SqlAnswer, Stamped
from stateside.serving.clients.core import Core, Whom
from stateside.serving.clients.merging import added_up, by_key
from stateside.serving.clients.questions import Floor, Part, of_view, texts
from stateside.serving.clients.steps import Ask, Reply, Steps, Together
from stateside.serving.stamp import Source

KEYS_MAX = 1_000  # of one request; more of them are sent in several
SQL_MS = 30_000  # for so long a statement may take if nothing else is said

R = TypeVar("R")
T = TypeVar("T", bound=Stamped)


@dataclass(frozen=True, slots=True)
class Place:
    """Who has a part of a view's keys, and which share that is, if it is one of several."""

    whom: Whom
    share: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to one of several places: whom, and how it is asked with a floor, or as of a batch.

    `share` is the one that the answer must be of.
    """

    whom: Whom
    ask: Callable[[Floor], Ask]
    share: str | None = None


class SharesChanged(OperatingError):
    """While a question went to all shares there came to be more or fewer of them: it has to be begun anew."""

    @classmethod
    def of(cls, view: str) -> SharesChanged:
        """For the shares of this view."""
        return cls(f"The keys of the view {view!r} were shared out anew meanwhile", next_step="Ask again")


class Asking:
    """All questions, over one core."""

    def __init__(self, core: Core) -> None:
        self.core = core

    # Questions by key

    def rows(self, view: str, key: Sequence[Part], floor: Floor, source: Source | None = None) -> Steps[Answer]:
        """The rows of a key, or of all that begin with these parts."""
        parts = texts(key)
        more = () if source is None else (("source", source),)
        ask = partial(of_view, view, "rows", parts, more=more)
        deadline_s = self.core.deadline(ask(floor))
        course = partial(self._rows, view, parts, ask, floor, deadline_s)
        return (yield from self.anew(course, SharesChanged, deadline_s))

    def lookup(self, view: str, keys: Sequence[Sequence[Part] | str], floor: Floor) -> Steps[Lookup]:
        """The rows of many whole keys, each at its key's place in the answer."""
        whole = [[key] if isinstance(key, str) else texts(key) for key in keys]
        if not whole:
            raise RequestInvalid("There is no key to look up", next_step="Give one at least")
        deadline_s = self.core.deadline(of_view(view, "lookup", (), floor))
        return (yield from self.anew(lambda: self._lookup(view, whole, floor, deadline_s), Misdirected, deadline_s))

    def sum(self, view: str, key: Sequence[Part], span: questions.Parameters, floor: Floor) -> Steps[Answer]:
        """A range of one key's buckets, combined."""
        parts = texts(key)
        ask = of_view(view, "sum", parts, floor, span)
        yield from self.core.look(self.core.deadline(ask))
        return (yield from self.core.read(ask, self._answer(view), self.one_place(view, parts)))

    def locate(self, view: str, key: Sequence[Part]) -> Steps[Location]:
        """Where a key is, as any server tells it."""
        ask = of_view(view, "location", texts(key), Floor())
        return (yield from self.core.read(ask, lambda told: Location(told["share"], told["servers"])))

    # Questions to all shares

    def rollup(self, view: str, columns: Sequence[str], key: Sequence[Part], floor: Floor) -> Steps[Answer]:
        """Rows added up by a coarser key; those of several shares are added up here."""
        ask = partial(of_view, view, questions.rollup_path(columns), texts(key))
        deadline_s = self.core.deadline(ask(floor))
        course = partial(self._rollup, view, columns, ask, floor, deadline_s)
        return (yield from self.anew(course, SharesChanged, deadline_s))

    # Questions to anybody

    def views(self) -> Steps[list[dict[str, Any]]]:
        """The views that are served."""
        return (yield from self.core.read(Ask("GET", "/v1/views"), lambda told: list(told["views"])))

    def servers(self) -> Steps[list[dict[str, Any]]]:
        """The servers that announce themselves."""
        return (yield from self.core.read(Ask("GET", "/v1/servers"), lambda told: list(told["servers"])))

    def document(self, path: str, parameters: questions.Parameters, floor: Floor) -> Steps[dict[str, Any]]:
        """The JSON document at a path."""
        ask = Ask("GET", path, (*floor.parameters(), *parameters), wait_s=floor.wait_s)
        return (yield from self.core.read(ask, dict))

    def content(self, path: str, parameters: questions.Parameters, floor: Floor) -> Steps[bytes]:
        """What is at a path, whatever it is."""
        reply: Reply
        ask = Ask("GET", path, (*floor.parameters(), *parameters), wait_s=floor.wait_s)
        _, reply = yield from self.core.reply(ask)
        return reply.content

    def sql(
        self, sql: str, parameters: Sequence[Any], rows_max: int | None, timeout_ms: int | None
    ) -> Steps[SqlAnswer]:
        """What a statement gives, asked of a server that has all keys that the token reaches."""
        limits = {"rows_max": rows_max, "timeout_ms": timeout_ms}
        document: dict[str, Any] = {"sql": sql, "parameters": list(parameters), "format": "json"}
        document |= {name: value for name, value in limits.items() if value is not None}
        ask = questions.posted("/v1/sql", document, wait_s=(timeout_ms or SQL_MS) / 1_000)
        deadline_s = self.core.deadline(ask)
        yield from self.core.look(deadline_s)
        try:
            return (yield from self.core.read(ask, SqlAnswer.of, self._with_all_keys(), deadline_s))
        except Misdirected as error:
            if not self.core.locations.named_by(error):
                raise _of_shares() from error
            return (yield from self.core.read(ask, SqlAnswer.of, self.named_by(error), deadline_s))

    def append(self, events: Sequence[Event | Mapping[str, Any]]) -> Steps[Position]:
        """Append events; the receipt."""
        ask = questions.appended(events)
        return (yield from self.core.read(ask, lambda told: Position.parse(told["receipt"])))

    # Where things are

    def anew(self, course: Callable[[], Steps[R]], when: type[StatesideError], deadline_s: float) -> Steps[R]:
        """Look up who has what, and go a course of steps; begin anew when things turn out to be elsewhere."""
        rounds = 0
        yield from self.core.look(deadline_s)
        while True:
            rounds += 1
            try:
                return (yield from course())
            except when as error:
                yield from self.core.pause(rounds, deadline_s, error)

    def shares(self, view: str) -> list[Place]:
        """The shares of a view, each with whom to ask; one for all if somebody has all keys, or if nothing is known."""
        locations = self.core.locations

        def copies(index: int, now_s: float) -> Sequence[str]:
            found = locations.shares(view, now_s)
            if found is not None and len(found) != count:
                raise SharesChanged.of(view)
            return () if found is None else found[index][1]

        nothing: list[str] = []
        known = locations.shares(view, self.core.clock()) or [(None, nothing)]
        count, nobody = len(known), partial(locations.unfound, view)
        return [
            Place(Whom(partial(copies, index), nobody, follow=count == 1), share)
            for index, (share, _) in enumerate(known)
        ]

    def asked_of(self, places: Sequence[Place], ask: Callable[[Floor], Ask]) -> list[Asked]:
        """The same question to several places."""
        return [Asked(place.whom, ask, place.share) for place in places]

    def named_by(self, error: Misdirected) -> Whom:
        """Those whom a server has named instead of itself."""
        urls = self.core.locations.named_by(error)
        return Whom(lambda now_s: urls)

    def types(self, view: str) -> Mapping[str, str]:
        """The types of a view's columns, as far as they are known."""
        held = self.core.locations.held(view)
        return {} if held is None else dict(held.columns)

    def put_together(self, view: str, answers: Sequence[Answer]) -> Answer:
        """Rows of several shares in the order of their keys; KeyInvalid if a share has more of them."""
        if any(answer.cursor is not None for answer in answers):
            raise KeyInvalid("There are more of these rows than one answer holds", next_step="Scan them, page by page")
        rows = sorted((row for answer in answers for row in answer.rows), key=by_key(self.key(view)))
        return Answer.together(rows, [answer.stamp for answer in answers], self.types(view))

    def whom(self, view: str, parts: Sequence[str]) -> Whom:
        """Who has the keys that begin so."""
        locations = self.core.locations
        return Whom(partial(locations.of_key, view, parts), partial(locations.unfound, view))

    def one_place(self, view: str, parts: Sequence[str]) -> Whom:
        """Who has all of the keys that begin so; RequestInvalid if they are in several places."""
        places = self.places(view, parts)
        if len(places) > 1:
            raise RequestInvalid(
                f"Each server has a share of the view {view!r}, and this is asked of several shares together",
                next_step="Give the first part of a key, or start a server without --share",
            )
        return places[0].whom

    def _with_all_keys(self) -> Whom:
        locations = self.core.locations
        return Whom(lambda now_s: locations.with_all_keys(now_s) or locations.anybody(now_s), follow=False)

    def places(self, view: str, parts: Sequence[str]) -> list[Place]:
        """Whom to ask for keys that begin so: all shares, if they may be anywhere."""
        scattered = self.core.locations.scattered(view, parts)
        return self.shares(view) if scattered else [Place(self.whom(view, parts))]

    def _rows(
        self, view: str, parts: Sequence[str], ask: Callable[[Floor], Ask], floor: Floor, deadline_s: float
    ) -> Steps[Answer]:
        make = self._answer(view)
        places = self.places(view, parts)
        if len(places) == 1:
            return (yield from self.core.read(ask(floor), make, places[0].whom, deadline_s))
        try:
            answers = yield from self.at_one_batch(self.asked_of(places, ask), make, floor, deadline_s)
        except Misdirected as error:  # what the token reaches is all in one place
            return (yield from self.core.read(ask(floor), make, self.named_by(error), deadline_s))
        return self.put_together(view, answers)

    def _lookup(self, view: str, keys: Sequence[Sequence[str]], floor: Floor, deadline_s: float) -> Steps[Lookup]:
        groups = self._by_place(view, keys)
        asked = [self._lookup_asked(view, [keys[index] for index in group]) for group in groups]
        answers = yield from self.at_one_batch(asked, Lookup.of, floor, deadline_s)
        found: list[Row | None] = [None] * len(keys)
        for group, answer in zip(groups, answers, strict=True):
            for index, row in zip(group, answer.found, strict=True):
                found[index] = row
        return Lookup.together_found(found, [answer.stamp for answer in answers], self.types(view))

    def _rollup(
        self, view: str, columns: Sequence[str], ask: Callable[..., Ask], floor: Floor, deadline_s: float
    ) -> Steps[Answer]:
        shares = self.shares(view)
        if len(shares) == 1:
            return (yield from self.core.read(ask(floor), self._answer(view), shares[0].whom, deadline_s))
        asked = self.asked_of(shares, partial(ask, more=(("tallies", "1"),)))
        answers = yield from self.at_one_batch(asked, Answer.of, floor, deadline_s)
        rows = added_up([answer.document for answer in answers], columns, self.key(view))
        return Answer.together(rows, [answer.stamp for answer in answers], self.types(view))

    def _by_place(self, view: str, keys: Sequence[Sequence[str]]) -> list[list[int]]:
        """The keys' places in the question, those that the same servers have together, and not too many."""
        groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for index, parts in enumerate(keys):
            groups[tuple(self.core.locations.of_key(view, parts, self.core.clock()))].append(index)
        return [group[at : at + KEYS_MAX] for group in groups.values() for at in range(0, len(group), KEYS_MAX)]

    def _lookup_asked(self, view: str, keys: Sequence[Sequence[str]]) -> Asked:
        path, whom = of_view(view, "lookup", (), Floor()).path, self.whom(view, keys[0])
        body = {"keys": keys}
        return Asked(
            replace(whom, follow=False),
            lambda floor: questions.posted(path, body, floor.parameters(), wait_s=floor.wait_s),
        )

    def key(self, view: str) -> Sequence[tuple[str, str]]:
        """The columns of a view's key, with their types, as far as they are known."""
        held = self.core.locations.held(view)
        return () if held is None else held.key

    def _answer(self, view: str) -> Callable[[Mapping[str, Any]], Answer]:
        return lambda document: Answer.of(document, self.types(view))

    def at_one_batch(
        self, asked: Sequence[Asked], make: Callable[[Mapping[str, Any]], T], floor: Floor, deadline_s: float
    ) -> Steps[list[T]]:
        """The answers of several places, of one batch where that can be: those ahead are asked as of the lowest.

        Where their history does not go back so far, or does not meet, they are as they are, and their stamps tell.
        """
        answers: list[T] = yield Together([self._read(each, make, floor, deadline_s) for each in asked])
        lowest = min(answer.stamp.batch for answer in answers)
        ahead = [index for index, answer in enumerate(answers) if answer.stamp.batch > lowest]
        if not ahead:
            return answers
        try:
            back = yield Together([self._read(asked[index], make, floor.at(lowest), deadline_s) for index in ahead])
        except (HistoryGone, NotFreshEnough):
            return answers
        redone = dict(zip(ahead, back, strict=True))
        return [redone.get(index, answer) for index, answer in enumerate(answers)]

    def _read(self, asked: Asked, make: Callable[[Mapping[str, Any]], T], floor: Floor, deadline_s: float) -> Steps[T]:
        answer = yield from self.core.read(asked.ask(floor), make, asked.whom, deadline_s)
        if asked.share is not None and answer.stamp.share != asked.share:
            self.core.locations.forget()
            raise SharesChanged.of(answer.stamp.view)
        return answer


def _of_shares() -> RequestInvalid:
    return RequestInvalid(
        "Each server has a share of the keys, and a statement is asked of all of them",
        next_step="Start a server without --share",
    )
