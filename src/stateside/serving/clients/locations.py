"""What a client knows of the servers: where they are, what they hold, and whom to leave alone for now. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

from stateside.errors import KeyInvalid, Misdirected, OperatingError, RequestInvalid, StatesideError
from stateside.serving.place.announcement import Announcement, Held, leading_or_none
from stateside.serving.place.location import Holding, cover, holdings, missing

LOOK_S: Final = 10.0  # for so long what is known of the servers is good enough, as long as they answer
AWAY_S: Final = 2.0  # for so long a server that did not reply is asked last


class Locations:
    """The servers that a client was given, and those that they told of.

    Of several copies a client always takes the same one first, by its `seed`: then its answers do not go back and forth
    between batches, and clients share the copies out among themselves.
    """

    def __init__(self, urls: Sequence[str], seed: bytes) -> None:
        self.given = tuple(dict.fromkeys(url.rstrip("/") for url in urls))
        if not self.given:
            raise RequestInvalid("There is no server to ask", next_step="Give the address of one")
        self._seed = seed
        self._servers: list[Announcement] = []
        self._looked_s = float("-inf")
        self._away: dict[str, float] = {}
        self._not_before: dict[str, float] = {}

    @property
    def known(self) -> bool:
        """Whether any server has told of itself and others."""
        return bool(self._servers)

    def due(self, now_s: float) -> bool:
        """Whether it is time to look the servers up."""
        return now_s - self._looked_s >= LOOK_S

    def learn(self, asked: str, document: Mapping[str, Any], now_s: float) -> None:
        """Take in what a server told of all servers. Itself it is reached where it was asked, whatever it is called.

        If the servers that were given are reached by https, others are not asked by http: a token would go with it.
        """
        servers = []
        for told in document.get("servers", ()):
            try:
                server = Announcement.of(told)
            except (ValueError, TypeError, LookupError, AttributeError, StatesideError):
                continue  # of another version: those that were given are asked
            if document.get("name") == server.name:
                server = replace(server, url=asked)
            if self.may_ask(server.url):
                servers.append(server)
        self._servers, self._looked_s = servers, now_s

    def may_ask(self, url: str) -> bool:
        """Whether a server that others told of is asked."""
        return url.startswith("https:") or any(given.startswith("http:") for given in self.given)

    def named_by(self, error: Misdirected) -> list[str]:
        """The servers that have what another one was asked for in vain, as that one says."""
        servers = (error.location or {}).get("servers", ())
        return [each["url"] for each in servers if self.may_ask(each["url"])]

    def nothing_told(self, now_s: float) -> None:
        """These servers tell nothing of others: those that were given are asked."""
        self._servers, self._looked_s = [], now_s

    def forget(self) -> None:
        """Look the servers up before the next question."""
        self._looked_s = float("-inf")

    def held(self, view: str) -> Held | None:
        """What somebody holds of a view; None if nobody is known to."""
        return next((server.views[view] for server in self._servers if view in server.views), None)

    def anybody(self, now_s: float) -> list[str]:
        """All servers, in the order they are asked in what any of them can answer."""
        return self._in_order([*self.given, *(server.url for server in self._servers)], now_s, keep=True)

    def of_key(self, view: str, parts: Sequence[str], now_s: float) -> list[str]:
        """Those that have a key; if nobody can tell, all of them. None if they are known and have fallen silent."""
        held = self.held(view)
        if held is None:
            return self.anybody(now_s)
        leading = leading_or_none(held, parts)
        if leading is None:
            return self.whole(view, now_s) or self.anybody(now_s)
        return self._urls(holdings(self._servers, view, leading), now_s)

    def scattered(self, view: str, parts: Sequence[str]) -> bool:
        """Whether keys that begin so may be in any share. What is no key is not: whoever is asked refuses it."""
        held = self.held(view)
        try:
            return held is not None and held.leading(parts) is None
        except KeyInvalid:
            return False

    def whole(self, view: str, now_s: float) -> list[str]:
        """Those that have all keys of a view."""
        return self._urls(holdings(self._servers, view), now_s)

    def shares(self, view: str, now_s: float) -> list[tuple[str | None, list[str]]] | None:
        """Servers that together have all keys of a view: each share with its copies. None if a share is missing."""
        if self.held(view) is None:
            return [(None, self.anybody(now_s))]
        found = cover(self._servers, view)
        return None if found is None else [(copies[0].share, self._urls(copies, now_s)) for copies in found]

    def with_all_keys(self, now_s: float) -> list[str]:
        """Those that have all keys of every view; if nothing is known, those that were given."""
        if not self._servers:
            return self.anybody(now_s)
        whole = [server.url for server in self._servers if all(held.share is None for held in server.views.values())]
        return self._in_order(whole, now_s)

    def unfound(self, view: str) -> OperatingError:
        """For keys that nobody has."""
        return OperatingError(
            f"Not all keys can be asked for: {missing(self._servers, view)}",
            where=", ".join(self.given),
            next_step="Start the servers that are missing: GET /v1/servers lists those that there are",
        )

    def note_silence(self, url: str, now_s: float) -> None:
        """A server did not reply: for a while others are asked first."""
        self._away[url] = now_s + AWAY_S

    def note_reply(self, url: str) -> None:
        """A server replied."""
        self._away.pop(url, None)

    def leave_alone(self, url: str, until_s: float) -> None:
        """A server wants to be left alone until then."""
        self._not_before[url] = max(until_s, self._not_before.get(url, until_s))

    def not_before_s(self, url: str) -> float:
        """When a server may be asked."""
        return self._not_before.get(url, float("-inf"))

    def _urls(self, found: Iterable[Holding], now_s: float) -> list[str]:
        return self._in_order([each.url for each in found], now_s)

    def _in_order(self, urls: Iterable[str], now_s: float, *, keep: bool = False) -> list[str]:
        distinct = list(dict.fromkeys(urls))
        ordered = distinct if keep else sorted(distinct, key=self._preference)
        return sorted(ordered, key=lambda url: self._away.get(url, 0.0) > now_s)

    def _preference(self, url: str) -> tuple[bool, bytes]:
        return url not in self.given, blake2b(url.encode(), key=self._seed, digest_size=8).digest()
