"""Tokens: their claims, the register of issued and revoked tokens, and the issuer.

Claims of a token, a JWT signed with HS256:

    {"sub": "emma's page", "jti": "5b1e…", "iat": 1767225600.25, "exp": 1769817600,
     "roles": ["append", "read"], "views": null, "where": {"customer": "emma"},
     "appends": {"entities": ["emma"], "types": ["usage"]}}

`appends` is present only in a token with an append scope, and has null for all entities or all types. `iat` and `exp`
are seconds since 1970; `iat` has microseconds, to distinguish a token from one of the same name revoked in the same
second. A token has exactly these claims and is valid for at most `LIFE_S_MAX`; anything else is refused, even with a
valid signature.

The register is a folder's `issued.json`:

    {"version": 1,
     "issued":  [{"id": "5b1e…", "name": "emma's page", "kid": "9f86…", "roles": ["read"], "views": null,
                  "where": {"customer": "emma"}, "issued": "2026-01-31T…Z", "expires": "2026-03-02T…Z"}, …],
                  with "appends": {"entities": […], "types": […]} for a token with an append scope
     "revoked": [{"id": "5b1e…", "until_us": …}, {"name": "finance", "issued_us": …, "until_us": …}, …]}

The register contains no tokens and can only refuse, never admit. A revocation covers one token, by its id, or all
tokens of a name issued up to a time, including those issued on another machine with the same keys. The next change of
the file removes expired tokens, and revocations whose tokens have all expired (`until_us`).

The issuer makes tokens, rotates keys and revokes. The issuer works on a folder's files, with or without a running
server.
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
SCOPE_ENTRIES_MAX: Final = 64  # views, columns, entities or types of one token, which is sent with each request
LIFE_S_MAX: Final = 400 * 86_400  # a revoked name is remembered for as long
SKEW_S: Final = 5  # tolerated difference between the clocks of issuer and verifier


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a token. `id_` is unique; `holder` is the principal."""

    holder: Principal
    id_: str
    issued_us: int
    expires_s: int

    def payload(self) -> dict[str, Any]:
        """The claims as the JWT's payload."""
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
        """The claims of a payload with a verified signature; TokenInvalid unless they are a token's claims."""
        if set(payload) - {APPENDS} != set(NAMES):
            raise _invalid(f"its claims are not {', '.join(NAMES)}")
        name, id_, issued, expires = (payload[name] for name in ("sub", "jti", "iat", "exp"))
        if not (_is_text(name) and _is_text(id_) and _is_time(issued) and _is_time(expires)):
            raise _invalid("one of sub, jti, iat and exp is not what it should be")
        if expires - issued > LIFE_S_MAX:  # a revocation expires after LIFE_S_MAX, and the token would be valid again
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
        """Raise TokenInvalid before the issue time or after the expiry, with `SKEW_S` of tolerance."""
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
    """The principal of a token with these claims; RequestInvalid for an impossible combination."""
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
    every = ROLES if "operator" in roles else roles  # an operator has all roles
    return Principal(name, frozenset(every), None if views is None else frozenset(views), dict(where), appends)


def shown_roles(holder: Principal) -> list[str]:
    """The roles as written in a token: `operator` alone implies all others."""
    return ["operator"] if "operator" in holder.roles else sorted(holder.roles)


def shown_appends(appends: Appends) -> dict[str, list[str] | None]:
    """The append scope as written in a token."""
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
    """A finite number of seconds within the range of dates; not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value < 1e11


VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """The register's entry of a token: everything but the token itself."""

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
        """The register's entry for a token with these claims."""
        holder = claims.holder
        views = None if holder.views is None else sorted(holder.views)
        issued, expires = iso_time(claims.issued_us), iso_time(claims.expires_s * 1_000_000)
        appends = None if holder.appends is None else shown_appends(holder.appends)
        return cls(
            claims.id_, holder.name, kid, shown_roles(holder), views, dict(holder.where), issued, expires, appends
        )

    def is_over(self, now_us: int) -> bool:
        """Whether the token has expired, with `SKEW_S` of tolerance."""
        return parse_time(self.expires) + SKEW_S * 1_000_000 <= now_us


@dataclass(frozen=True, slots=True)
class Revoked:
    """The revocations: token ids, and names with the last revoked issue time, each with the time of its own expiry."""

    ids: Mapping[str, int]
    names: Mapping[str, tuple[int, int]]

    def has(self, claims: Claims) -> bool:
        return claims.id_ in self.ids or claims.issued_us <= self.names.get(claims.holder.name, (-1, 0))[0]

    def lasting(self, now_us: int) -> Revoked:
        """The revocations that have not expired."""
        return Revoked(
            {id_: until_us for id_, until_us in self.ids.items() if until_us > now_us},
            {name: times for name, times in self.names.items() if times[1] > now_us},
        )

    def with_id(self, id_: str, until_us: int) -> Revoked:
        return Revoked({**self.ids, id_: until_us}, self.names)

    def with_name(self, name: str, issued_us: int) -> Revoked:
        """With a revocation of all tokens of a name issued up to this time."""
        until_us = issued_us + (LIFE_S_MAX + SKEW_S) * 1_000_000
        return Revoked(self.ids, {**self.names, name: (issued_us, until_us)})


NOTHING_REVOKED: Final = Revoked({}, {})


class Register(SecretFile[tuple[tuple[IssuedToken, ...], Revoked]]):
    """The register file of a folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, VERSION, _parse, ((), NOTHING_REVOKED))

    def ensure(self) -> None:
        """Create the file, empty, if missing. Keys without a register admit nobody: revocations would be unknown."""
        with self.turn():
            if not self.exists():
                self.write({"issued": [], "revoked": []})

    def next_us(self, name: str, now_us: int) -> int:
        """The earliest issue time of a new token of this name: now, and after all its revoked tokens."""
        _, revoked = self.read()
        return max(now_us, revoked.names.get(name, (-1, 0))[0] + 1)

    def add(self, issued: IssuedToken, now_us: int) -> None:
        """Register a token, before the token is handed out."""
        with self.turn():
            there, revoked = self.read()
            self._store([*there, issued], revoked, now_us)

    def listed(self, now_us: int) -> list[IssuedToken]:
        """The tokens that are neither expired nor revoked; their keys may be retired."""
        issued, revoked = self.read()
        return [each for each in issued if not each.is_over(now_us) and not _is_revoked(each, revoked)]

    def revoke(self, name: str, id_: str | None, now_us: int) -> int:
        """Revoke all tokens of a name, or one by its id; returns the number of registered tokens revoked.

        An id is only matched together with its name. RequestInvalid if no token matches.
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
    """The entry as JSON. Without `appends` where None, so that an older Stateside can read the entry."""
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
        """Make a token; returns the token, which is not stored anywhere, and its entry in the register.

        Several tokens may share a name, their principal's. The first token creates the folder's first key; from then on
        every request needs a token. `entities` and `types` are the append scope; a scoped token with the role append
        needs both. RequestInvalid for an impossible token.
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
        """Make a token that reads one customer's own data."""
        return self.create(name, where={CUSTOMER: id_})[0]

    def create_operator(self, name: str) -> str:
        """Make a token that reaches everything."""
        return self.create(name, ("operator",))[0]

    def tokens(self) -> list[IssuedToken]:
        """The valid tokens, oldest first."""
        kids = {key.kid for key in self._keys.read()}
        return [each for each in self._register.listed(self._clock.now_us()) if each.kid in kids]

    def revoke(self, name: str, id_: str | None = None) -> int:
        """Revoke all tokens of a name, or the one with this id; returns their number. RequestInvalid if none."""
        return self._register.revoke(name, id_, self._clock.now_us())

    def listed_keys(self) -> list[tuple[Key, int]]:
        """The keys, oldest first, each with the number of valid tokens signed with the key."""
        kids = [each.kid for each in self.tokens()]
        return [(key, kids.count(key.kid)) for key in self._keys.read()]

    def rotate(self) -> Key:
        """Add a key, which signs from now on; the old keys verify until retired."""
        self._register.ensure()
        return self._keys.rotate(self._clock)

    def retire(self, kid: str) -> None:
        """Remove an old key; all tokens signed with the key become invalid."""
        self._keys.retire(kid)


def _names(given: Sequence[str] | None) -> frozenset[str] | None:
    return None if given is None else frozenset(given)


def _check_append_scope(holder: Principal) -> None:
    """Raise RequestInvalid for a scoped token with an incomplete append scope: rights must be named explicitly."""
    appends = holder.appends or Appends()
    if "append" in holder.roles and holder.is_scoped and None in (appends.entities, appends.types):
        raise RequestInvalid(
            "A scoped token with the role append names the entities and the types of events that it may append",
            next_step="Give --customer ID, or --entity NAME, and --type TYPE, each as often as needed",
        )


def signed(claims: Claims, key: Key) -> str:
    return jwt.encode(claims.payload(), key.secret, ALGORITHM, headers={"kid": key.kid})


def parse_life_s(text: str) -> int:
    """A token's lifetime in seconds from text like 90s, 15m, 24h, 30d; RequestInvalid for any other text."""
    matched = re.fullmatch(r"([0-9]{1,9})(s|m|h|d)", text)
    if matched is None:
        raise RequestInvalid(
            f"{text[:80]!r} is no time that a token is valid for", next_step="Write it like 24h or 30d"
        )
    return int(matched[1]) * _UNITS_S[matched[2]]
