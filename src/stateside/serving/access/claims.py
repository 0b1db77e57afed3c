"""What a token says: whose it is, for how long, and how far it reaches.

    {"sub": "emma's page", "jti": "5b1e…", "iat": 1767225600.25, "exp": 1769817600,
     "roles": ["append", "read"], "views": null, "where": {"customer": "emma"},
     "appends": {"entities": ["emma"], "types": ["usage"]}}

`appends` is there only in a token whose events are limited, and has null for all entities or all types. `iat` and `exp`
are seconds since 1970; `iat` has microseconds, so that a token can be told from one of the same name that was revoked
in the same second. A token has these claims, all of them and no others, and is valid for at most `LIFE_S_MAX`: anything
else is none of ours, whoever signed it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from stateside.errors import RequestInvalid, TokenInvalid
from stateside.serving.access.holder import ROLES, Appends, Holder, Role

NAMES: Final = ("sub", "jti", "iat", "exp", "roles", "views", "where")
APPENDS: Final = "appends"
NAME_CHARS_MAX: Final = 200
SCOPE_ENTRIES_MAX: Final = 64  # views, columns, entities or types that one token may name: it travels with each request
LIFE_S_MAX: Final = 400 * 86_400  # a revoked name is remembered for as long
SKEW_S: Final = 5  # by how much the clocks of who issues and who verifies may differ


@dataclass(frozen=True, slots=True)
class Claims:
    """A token's content. `id_` tells it from all others, `holder` is whom it lets in."""

    holder: Holder
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
) -> Holder:
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
    return Holder(name, frozenset(every), None if views is None else frozenset(views), dict(where), appends)


def shown_roles(holder: Holder) -> list[str]:
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
