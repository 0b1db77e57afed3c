"""The register of the tokens that were issued, and of those that are revoked: a folder's `issued.json`.

    {"version": 1,
     "issued":  [{"id": "5b1e…", "name": "emma's page", "kid": "9f86…", "roles": ["read"], "views": null,
                  "where": {"customer": "emma"}, "issued": "2026-01-31T…Z", "expires": "2026-03-02T…Z"}, …],
                  with "appends": {"entities": […], "types": […]} where its events are limited
     "revoked": [{"id": "5b1e…", "until_us": …}, {"name": "finance", "issued_us": …, "until_us": …}, …]}

It has no token in it: nobody is let in by what it says, only turned away. A revocation is of one token, by its id, or
of all of a name that were issued up to a time, those of another machine with the same keys included. What has expired
leaves the file when it is next changed, and a revocation when nothing that it is about can still be valid (`until_us`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from stateside.errors import RequestInvalid
from stateside.serving.access.claims import APPENDS, LIFE_S_MAX, SKEW_S, Claims, shown_appends, shown_roles
from stateside.serving.access.secret_file import SecretFile
from stateside.serving.stamp import iso_time, parse_time

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Issued:
    """A token as the register has it, which is all but the token."""

    id: str
    name: str
    kid: str
    roles: Sequence[str]
    views: Sequence[str] | None
    where: Mapping[str, str]
    issued: str
    expires: str
    appends: Mapping[str, Sequence[str] | None] | None = None

    @classmethod
    def of(cls, claims: Claims, kid: str) -> Issued:
        """How a token of these claims is registered."""
        holder = claims.holder
        views = None if holder.views is None else sorted(holder.views)
        issued, expires = iso_time(claims.issued_us), iso_time(claims.expires_s * 1_000_000)
        appends = None if holder.appends is None else shown_appends(holder.appends)
        return cls(
            claims.id_, holder.name, kid, shown_roles(holder), views, dict(holder.where), issued, expires, appends
        )

    def is_over(self, now_us: int) -> bool:
        """Whether nobody is let in with it any more, however late their clock is."""
        return parse_time(self.expires) + SKEW_S * 1_000_000 <= now_us


@dataclass(frozen=True, slots=True)
class Revoked:
    """What is revoked: token ids; and names, with the time up to which their tokens were issued. With their ends."""

    ids: Mapping[str, int]
    names: Mapping[str, tuple[int, int]]

    def has(self, claims: Claims) -> bool:
        """Whether this token is among them."""
        return claims.id_ in self.ids or claims.issued_us <= self.names.get(claims.holder.name, (-1, 0))[0]

    def lasting(self, now_us: int) -> Revoked:
        """Without those that are about nothing any more."""
        return Revoked(
            {id_: until_us for id_, until_us in self.ids.items() if until_us > now_us},
            {name: times for name, times in self.names.items() if times[1] > now_us},
        )

    def with_id(self, id_: str, until_us: int) -> Revoked:
        """With one token more."""
        return Revoked({**self.ids, id_: until_us}, self.names)

    def with_name(self, name: str, issued_us: int) -> Revoked:
        """With all tokens of a name that were issued up to this time."""
        until_us = issued_us + (LIFE_S_MAX + SKEW_S) * 1_000_000
        return Revoked(self.ids, {**self.names, name: (issued_us, until_us)})


NOTHING_REVOKED: Final = Revoked({}, {})


class Register(SecretFile[tuple[tuple[Issued, ...], Revoked]]):
    """The register of a folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, VERSION, _parse, ((), NOTHING_REVOKED))

    def ensure(self) -> None:
        """Have the file, empty at first. Keys without it let nobody in: who is revoked would not be known."""
        with self.turn():
            if not self.exists():
                self.write({"issued": [], "revoked": []})

    def next_us(self, name: str, now_us: int) -> int:
        """When a token of this name can be issued at the earliest: now, and after all of its that are revoked."""
        _, revoked = self.read()
        return max(now_us, revoked.names.get(name, (-1, 0))[0] + 1)

    def add(self, issued: Issued, now_us: int) -> None:
        """Note a token, before it is handed out."""
        with self.turn():
            there, revoked = self.read()
            self._store([*there, issued], revoked, now_us)

    def listed(self, now_us: int) -> list[Issued]:
        """Those that let their holders in, as far as keys are still there: neither expired nor revoked."""
        issued, revoked = self.read()
        return [each for each in issued if not each.is_over(now_us) and not _is_revoked(each, revoked)]

    def revoke(self, name: str, id_: str | None, now_us: int) -> int:
        """End all tokens of a name, or the one with this id; how many of the registered ones. RequestInvalid if none.

        Nobody else's token is taken for this one's: an id counts together with its name only.
        """
        with self.turn():
            issued, revoked = self.read()
            alive = [each for each in issued if not each.is_over(now_us) and not _is_revoked(each, revoked)]
            ended = [each for each in alive if each.name == name and id_ in (None, each.id)]
            if not ended:
                what = (
                    f"There is no token {name!r}" if id_ is None else f"There is no token {name!r} with the id {id_!r}"
                )
                raise RequestInvalid(what, next_step="`stateside token list` has all of them")
            if id_ is None:
                revoked = revoked.with_name(name, max(now_us, *(parse_time(each.issued) for each in ended)))
            else:
                revoked = revoked.with_id(id_, parse_time(ended[0].expires) + SKEW_S * 1_000_000)
            self._store(issued, revoked, now_us)
            return len(ended)

    def _store(self, issued: Sequence[Issued], revoked: Revoked, now_us: int) -> None:
        left = revoked.lasting(now_us)
        ids = [{"id": id_, "until_us": until_us} for id_, until_us in left.ids.items()]
        names = [
            {"name": name, "issued_us": issued_us, "until_us": until_us}
            for name, (issued_us, until_us) in left.names.items()
        ]
        alive = [each for each in issued if not each.is_over(now_us) and not _is_revoked(each, left)]
        self.write({"issued": list(map(_shown, alive)), "revoked": [*ids, *names]})


def _shown(issued: Issued) -> dict[str, Any]:
    """As the file has it: an older Stateside knows no `appends`, and can read what has none."""
    return {name: value for name, value in asdict(issued).items() if name != APPENDS or value is not None}


def _is_revoked(issued: Issued, revoked: Revoked) -> bool:
    last_us, _ = revoked.names.get(issued.name, (-1, 0))
    return issued.id in revoked.ids or parse_time(issued.issued) <= last_us


def _parse(document: Mapping[str, Any]) -> tuple[tuple[Issued, ...], Revoked]:
    revoked = document["revoked"]
    ids = {str(each["id"]): int(each["until_us"]) for each in revoked if "id" in each}
    names = {str(each["name"]): (int(each["issued_us"]), int(each["until_us"])) for each in revoked if "name" in each}
    return tuple(Issued(**each) for each in document["issued"]), Revoked(ids, names)
