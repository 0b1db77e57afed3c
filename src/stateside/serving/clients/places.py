"""Who has which keys of a view, and asking all of them: the answers of several shares are of one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from stateside.errors import HistoryGone, Misdirected, NotFreshEnough, OperatingError, RequestInvalid, StatesideError
from stateside.serving.clients.answers import Stamped
from stateside.serving.clients.core import Core, Whom
from stateside.serving.clients.questions import Floor
from stateside.serving.clients.steps import Ask, Steps, Together

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


class Places:
    """Where the keys of views are, as far as one core knows."""

    def __init__(self, core: Core) -> None:
        self.core = core

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

    def whom(self, view: str, parts: Sequence[str]) -> Whom:
        """Who has the keys that begin so."""
        locations = self.core.locations
        return Whom(partial(locations.of_key, view, parts), partial(locations.unfound, view))

    def one_place(self, view: str, parts: Sequence[str]) -> Whom:
        """Who has all of the keys that begin so; RequestInvalid if they are in several places."""
        places = self.of(view, parts)
        if len(places) > 1:
            raise RequestInvalid(
                f"Each server has a share of the view {view!r}, and this is asked of several shares together",
                next_step="Give the first part of a key, or start a server without --share",
            )
        return places[0].whom

    def with_all_keys(self) -> Whom:
        """Who has all keys of all views that the token reaches; anybody, if nobody is known to."""
        locations = self.core.locations
        return Whom(lambda now_s: locations.with_all_keys(now_s) or locations.anybody(now_s), follow=False)

    def of(self, view: str, parts: Sequence[str]) -> list[Place]:
        """Whom to ask for keys that begin so: all shares, if they may be anywhere."""
        scattered = self.core.locations.scattered(view, parts)
        return self.shares(view) if scattered else [Place(self.whom(view, parts))]

    def key(self, view: str) -> Sequence[tuple[str, str]]:
        """The columns of a view's key, with their types, as far as they are known."""
        held = self.core.locations.held(view)
        return () if held is None else held.key

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
