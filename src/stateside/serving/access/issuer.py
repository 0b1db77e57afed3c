"""The issuer: makes tokens, rotates keys, revokes. It works on a folder's files, whether a server runs there or not."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

import jwt

from stateside.clock import Clock, SystemClock
from stateside.errors import RequestInvalid
from stateside.layout import Layout
from stateside.serving.access.claims import LIFE_S_MAX, Claims, holder_of
from stateside.serving.access.holder import CUSTOMER, Appends, Holder, Role
from stateside.serving.access.keys import Key, KeyFile
from stateside.serving.access.register import Issued, Register

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
    ) -> tuple[str, Issued]:
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
        issued = Issued.of(claims, key.kid)
        self._register.add(issued, now_us)
        return signed(claims, key), issued

    def create_customer(self, name: str, id_: str) -> str:
        """Make a customer's token: it reads what is that customer's own."""
        return self.create(name, where={CUSTOMER: id_})[0]

    def create_operator(self, name: str) -> str:
        """Make an operator's token: it reaches everything."""
        return self.create(name, ("operator",))[0]

    def tokens(self) -> list[Issued]:
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


def _check_append_scope(holder: Holder) -> None:
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
