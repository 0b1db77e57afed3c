"""What a token says: whose it is, for how long, and how far it reaches.

    {"sub": "emma's page", "jti": "5b1e…", "iat": 1767225600.25, "exp": 1769817600,
     "roles": ["append", "read"], "views": null, "where": {"customer": "emma"},
     "appends": {"entities": ["emma"], "types": ["usage"]}}

`appends` is there only in a token whose events are limited, and has null for all entities or all types. `iat` and `exp`
are seconds since 1970; `iat` has microseconds, so that a token can be told from one of the same name that was revoked
in the same second. A token has these claims, all of them and no others, and is valid for at most `LIFE_S_MAX`: anything
else is none of ours, whoever signed it.

The issuer: makes tokens, rotates keys, revokes. It works on a folder's files, whether a server runs there or not.

The register of the tokens that were issued, and of those that are revoked: a folder's `issued.json`.

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

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeGuard

import jwt

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import RequestInvalid, TokenInvalid
from stateside.core.layout import Layout
from stateside.serving.access.principal import CUSTOMER, ROLES, Appends, Principal, Role
from stateside.serving.access.token_files import Key, KeyFile, SecretFile
from stateside.serving.stamp import iso_time, parse_time

NAMES: Final = ("sub", "jti", "iat", "exp", "roles", "views", "where")
APPENDS: Final = "appends"
NAME_CHARS_MAX: Final = 200
SCOPE_ENTRIES_MAX: Final = 64  # views, columns, entities or types that one token may name: it travels with each request
LIFE_S_MAX: Final = 400 * 86_400  # a revoked name is remembered for as long
SKEW_S: Final = 5  # by how much the clocks of who issues and who verifies may differ


@dataclass(frozen=True, slots=True)
class Claims:
    """A token's content. `id_` tells it from all others, `holder` is whom it lets in."""

    holder: Principal
    id_: str
    issued_us: int
    expires_s: int

    def payload(self) -> dict[str, Any]:
        """As it stands in the token."""
        holder = self.holder
        return {
            "sub": holder.name,
            "jti": self.id_,
            "iat": self.issued_us / 1_000_000,
            "exp": self.expires_s,
            "roles": shown_roles(holder),
            "views": None if holder.views is None else sorted(holder.views),
            "where": dict(holder.where),
            **({} if holder.appends is None else {APPENDS: shown_appends(holder.appends)}),
        }

    @classmethod
    def parse(cls, payload: Mapping[str, Any]) -> Claims:
        """The claims of a payload whose signature is right; TokenInvalid if they are not those of a token."""
        if set(payload) - {APPENDS} != set(NAMES):
            raise _invalid(f"its claims are not {', '.join(NAMES)}")
        name, id_, issued, expires = (payload[name] for name in ("sub", "jti", "iat", "exp"))
        if not (_is_text(name) and _is_text(id_) and _is_time(issued) and _is_time(expires)):
            raise _invalid("one of sub, jti, iat and exp is not what it should be")
        if expires - issued > LIFE_S_MAX:  # a revocation is forgotten after so long, and the token would be good again
            raise _invalid(f"it is valid for longer than {LIFE_S_MAX // 86_400} days")
        roles, views, where = (payload[name] for name in ("roles", "views", "where"))
        if not (_is_roles(roles) and (views is None or _is_texts(views)) and _is_where(where)):
            raise _invalid("one of roles, views and where is not what it should be")
        appends = payload.get(APPENDS)
        if APPENDS in payload and not _is_appends(appends):
            raise _invalid("its claim appends is not what it should be")
        try:
            holder = holder_of(name, roles, views, where, None if appends is None else _appends_of(appends))
        except RequestInvalid as error:
            raise _invalid(error.what) from None
        return cls(holder, id_, round(issued * 1_000_000), int(expires))

    def check_time(self, now_us: int) -> None:
        """TokenInvalid before it was issued or once it has expired, but for a small difference of clocks."""
        if now_us >= (self.expires_s + SKEW_S) * 1_000_000:
            raise TokenInvalid("This token has expired", next_step="Ask who runs this server for a new one")
        if now_us < self.issued_us - SKEW_S * 1_000_000:
            raise TokenInvalid(
                "This token is not valid yet: it was issued later than now",
                next_step="Compare this server's clock with that of the machine that issued it",
            )


def holder_of(
    name: str,
    roles: list[Role] | tuple[Role, ...],
    views: list[str] | None,
    where: Mapping[str, str],
    appends: Appends | None = None,
) -> Principal:
    """Whom a token with these words lets in; RequestInvalid if there can be no such token."""
    if not name.isprintable() or not 1 <= len(name) <= NAME_CHARS_MAX:
        raise RequestInvalid(f"A token's name has 1 to {NAME_CHARS_MAX} characters that can be printed")
    if not roles:
        raise RequestInvalid("A token without a role opens nothing", next_step=f"The roles are: {', '.join(ROLES)}")
    if max(len(views or ()), len(where)) > SCOPE_ENTRIES_MAX:
        raise RequestInvalid(f"A token names at most {SCOPE_ENTRIES_MAX} views and as many columns")
    if views is not None and not views:
        raise RequestInvalid("A token for no view at all reaches nothing", next_step="Name a view, or none for all")
    if appends is not None:
        _check_appends(appends, roles)
    scoped = views is not None or bool(where) or appends is not None
    if "operator" in roles and scoped:
        raise RequestInvalid(
            "An operator reaches everything: its token has no views, columns or events that it would be limited to",
            next_step="Take another role, or leave the scope out",
        )
    every = ROLES if "operator" in roles else roles  # an operator may do what everybody may
    return Principal(name, frozenset(every), None if views is None else frozenset(views), dict(where), appends)


def shown_roles(holder: Principal) -> list[str]:
    """A holder's roles as they are written: an operator's is the one that has all the others in it."""
    return ["operator"] if "operator" in holder.roles else sorted(holder.roles)


def shown_appends(appends: Appends) -> dict[str, list[str] | None]:
    """An append scope as it is written."""
    each = {"entities": appends.entities, "types": appends.types}
    return {name: None if names is None else sorted(names) for name, names in each.items()}


def _check_appends(appends: Appends, roles: Sequence[Role]) -> None:
    for names in (appends.entities, appends.types):
        if names is not None and not 1 <= len(names) <= SCOPE_ENTRIES_MAX:
            raise RequestInvalid(f"A token names 1 to {SCOPE_ENTRIES_MAX} entities and types that it may append")
    if "append" not in roles:
        raise RequestInvalid(
            "Entities and types are of events that a token may append, and it has not the role append",
            next_step="Give it that role, or leave --entity and --type out",
        )


def _appends_of(claim: Mapping[str, list[str] | None]) -> Appends:
    entities, types = (None if names is None else frozenset(names) for names in (claim["entities"], claim["types"]))
    return Appends(entities, types)


def _invalid(reason: str) -> TokenInvalid:
    return TokenInvalid(f"This token is none of this server's: {reason}", next_step="Ask who runs it for a new one")


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value)


def _is_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(_is_text(each) for each in value)


def _is_roles(value: Any) -> TypeGuard[list[Role]]:
    return _is_texts(value) and all(each in ROLES for each in value)


def _is_where(value: Any) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(_is_text(name) and isinstance(text, str) for name, text in value.items())


def _is_appends(value: Any) -> bool:
    there = isinstance(value, dict) and set(value) == {"entities", "types"}
    return there and all(names is None or _is_texts(names) for names in value.values())


def _is_time(value: Any) -> TypeGuard[float]:
    """A number of seconds that a date can be made of: no truth value, no infinity."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value < 1e11


VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class IssuedToken:
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
    def of(cls, claims: Claims, kid: str) -> IssuedToken:
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


class Register(SecretFile[tuple[tuple[IssuedToken, ...], Revoked]]):
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

    def add(self, issued: IssuedToken, now_us: int) -> None:
        """Note a token, before it is handed out."""
        with self.turn():
            there, revoked = self.read()
            self._store([*there, issued], revoked, now_us)

    def listed(self, now_us: int) -> list[IssuedToken]:
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

    def _store(self, issued: Sequence[IssuedToken], revoked: Revoked, now_us: int) -> None:
        left = revoked.lasting(now_us)
        ids = [{"id": id_, "until_us": until_us} for id_, until_us in left.ids.items()]
        names = [
            {"name": name, "issued_us": issued_us, "until_us": until_us}
            for name, (issued_us, until_us) in left.names.items()
        ]
        alive = [each for each in issued if not each.is_over(now_us) and not _is_revoked(each, left)]
        self.write({"issued": list(map(_shown, alive)), "revoked": [*ids, *names]})


def _shown(issued: IssuedToken) -> dict[str, Any]:
    """As the file has it: an older Stateside knows no `appends`, and can read what has none."""
    return {name: value for name, value in asdict(issued).items() if name != APPENDS or value is not None}


def _is_revoked(issued: IssuedToken, revoked: Revoked) -> bool:
    last_us, _ = revoked.names.get(issued.name, (-1, 0))
    return issued.id in revoked.ids or parse_time(issued.issued) <= last_us


def _parse(document: Mapping[str, Any]) -> tuple[tuple[IssuedToken, ...], Revoked]:
    revoked = document["revoked"]
    ids = {str(each["id"]): int(each["until_us"]) for each in revoked if "id" in each}
    names = {str(each["name"]): (int(each["issued_us"]), int(each["until_us"])) for each in revoked if "name" in each}
    return tuple(IssuedToken(**each) for each in document["issued"]), Revoked(ids, names)


ALGORITHM: Final = "HS256"
LIFE_S_DEFAULT: Final = 30 * 86_400
_ID_BYTES: Final = 12
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Issuer:
    """Issues the tokens of one folder."""

    def __init__(self, layout: Layout, clock: Clock | None = None) -> None:
        self._keys, self._register = KeyFile(layout.keys), Register(layout.issued)
        self._clock = clock or SystemClock()

    def create(
        self,
        name: str,
        roles: Sequence[Role] = ("read",),
        *,
        views: Sequence[str] | None = None,
        where: Mapping[str, str] | None = None,
        entities: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        life_s: int = LIFE_S_DEFAULT,
    ) -> tuple[str, IssuedToken]:
        """Make a token and return it, the only time that it is seen, with what the register has of it.

        Several may have one name: that of their holder. The first one makes the folder's first key, and from then on
        every request needs a token. `entities` and `types` are of the events that it may append; a scoped token needs
        both for the role append. RequestInvalid for a token that cannot be.
        """
        appends = None if entities is None and types is None else Appends(_names(entities), _names(types))
        holder = holder_of(name, tuple(roles), None if views is None else list(views), where or {}, appends)
        _check_append_scope(holder)
        if not 1 <= life_s <= LIFE_S_MAX:
            raise RequestInvalid(f"A token is valid for 1 second to {LIFE_S_MAX // 86_400} days")
        self._register.ensure()
        key = self._keys.newest(self._clock)
        now_us = self._register.next_us(name, self._clock.now_us())
        claims = Claims(holder, secrets.token_hex(_ID_BYTES), now_us, now_us // 1_000_000 + life_s)
        issued = IssuedToken.of(claims, key.kid)
        self._register.add(issued, now_us)
        return signed(claims, key), issued

    def create_customer(self, name: str, id_: str) -> str:
        """Make a customer's token: it reads what is that customer's own."""
        return self.create(name, where={CUSTOMER: id_})[0]

    def create_operator(self, name: str) -> str:
        """Make an operator's token: it reaches everything."""
        return self.create(name, ("operator",))[0]

    def tokens(self) -> list[IssuedToken]:
        """Those that let their holders in, oldest first."""
        kids = {key.kid for key in self._keys.read()}
        return [each for each in self._register.listed(self._clock.now_us()) if each.kid in kids]

    def revoke(self, name: str, id_: str | None = None) -> int:
        """End all tokens of a name, or the one with this id; how many. RequestInvalid if there is none."""
        return self._register.revoke(name, id_, self._clock.now_us())

    def listed_keys(self) -> list[tuple[Key, int]]:
        """The keys, oldest first, each with how many valid tokens it has signed."""
        kids = [each.kid for each in self.tokens()]
        return [(key, kids.count(key.kid)) for key in self._keys.read()]

    def rotate(self) -> Key:
        """Add a key, which signs from now on; the old ones verify until they are retired."""
        self._register.ensure()
        return self._keys.rotate(self._clock)

    def retire(self, kid: str) -> None:
        """Remove an old key; what it has signed lets nobody in any more."""
        self._keys.retire(kid)


def _names(given: Sequence[str] | None) -> frozenset[str] | None:
    return None if given is None else frozenset(given)


def _check_append_scope(holder: Principal) -> None:
    """RequestInvalid for a scoped token that would append nothing: least is granted, and has to be named."""
    appends = holder.appends or Appends()
    if "append" in holder.roles and holder.is_scoped and None in (appends.entities, appends.types):
        raise RequestInvalid(
            "A scoped token with the role append names the entities and the types of events that it may append",
            next_step="Give --customer ID, or --entity NAME, and --type TYPE, each as often as needed",
        )


def signed(claims: Claims, key: Key) -> str:
    """The token of these claims, signed with this key."""
    return jwt.encode(claims.payload(), key.secret, ALGORITHM, headers={"kid": key.kid})


def parse_life_s(text: str) -> int:
    """For how long a token is valid, as people write it: 90s, 15m, 24h, 30d; RequestInvalid if it is not so."""
    matched = re.fullmatch(r"([0-9]{1,9})(s|m|h|d)", text)
    if matched is None:
        raise RequestInvalid(
            f"{text[:80]!r} is no time that a token is valid for", next_step="Write it like 24h or 30d"
        )
    return int(matched[1]) * _UNITS_S[matched[2]]
