"""What a token says: whose it is, for how long, and how far it reaches.

    {"sub": "emma's page", "jti": "5b1e…", "iat": 1767225600.25, "exp": 1769817600,
     "roles": ["read"], "views": null, "where": {"customer": "emma"}}

`iat` and `exp` are seconds since 1970; `iat` has microseconds, so that a token can be told from one of the same name
that was revoked in the same second. A token has these claims, all of them and no others: anything else is none of ours,
whoever signed it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from stateside.errors import RequestInvalid, TokenInvalid
from stateside.serving.access.holder import ROLES, Holder, Role

NAMES: Final = ("sub", "jti", "iat", "exp", "roles", "views", "where")
NAME_CHARS_MAX: Final = 200
SCOPE_ENTRIES_MAX: Final = 64  # views, or columns, that one token may name: it travels with each request
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
        }

    @classmethod
    def parse(cls, payload: Mapping[str, Any]) -> Claims:
        """The claims of a payload whose signature is right; TokenInvalid if they are not those of a token."""
        if set(payload) != set(NAMES):
            raise _invalid(f"its claims are not {', '.join(NAMES)}")
        name, id_, issued, expires = (payload[name] for name in ("sub", "jti", "iat", "exp"))
        if not (_is_text(name) and _is_text(id_) and _is_time(issued) and _is_time(expires)):
            raise _invalid("one of sub, jti, iat and exp is not what it should be")
        roles, views, where = (payload[name] for name in ("roles", "views", "where"))
        if not (_is_roles(roles) and (views is None or _is_texts(views)) and _is_where(where)):
            raise _invalid("one of roles, views and where is not what it should be")
        try:
            holder = holder_of(name, roles, views, where)
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
    name: str, roles: list[Role] | tuple[Role, ...], views: list[str] | None, where: Mapping[str, str]
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
    scoped = views is not None or bool(where)
    if "operator" in roles and scoped:
        raise RequestInvalid(
            "An operator reaches everything: its token has no views and no columns that it would be limited to",
            next_step="Take another role, or leave the scope out",
        )
    every = ROLES if "operator" in roles else roles  # an operator may do what everybody may
    return Holder(name, frozenset(every), None if views is None else frozenset(views), dict(where))


def shown_roles(holder: Holder) -> list[str]:
    """A holder's roles as they are written: an operator's is the one that has all the others in it."""
    return ["operator"] if "operator" in holder.roles else sorted(holder.roles)


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


def _is_time(value: Any) -> TypeGuard[float]:
    """A number of seconds that a date can be made of: no truth value, no infinity."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value < 1e11
