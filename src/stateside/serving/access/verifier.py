"""The verifier: finds the principal of a request by its header `Authorization`. A cached token costs two `stat` calls.

A token must match the issuer's text to the character: base64 has several texts for the same bytes, and only one of them
was issued. The algorithm is fixed; a token that names another algorithm is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import jwt
from jwt.utils import base64url_encode

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import SetupError, TokenInvalid
from stateside.core.layout import Layout
from stateside.serving.access.position_codec import PositionCodec
from stateside.serving.access.principal import OPERATOR, Principal
from stateside.serving.access.token_files import Key, KeyFile
from stateside.serving.access.tokens import ALGORITHM, NAMES, Claims, Register, Revoked

TOKEN_CHARS_MAX: Final = 8_192
CACHED_MAX: Final = 4_096  # verified tokens, about 1 KB each
_SCHEME: Final = "bearer "
_SHAPE: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
_OPTIONS: Final[Any] = {
    "require": [name for name in NAMES if name != "views"],  # PyJWT takes a claim of null (all views) for missing
    # `Claims.check_time` checks these three at every request, with the clock passed to the verifier
    "verify_exp": False,
    "verify_iat": False,
    "verify_nbf": False,
}


class TokenRefused(TokenInvalid):
    """A token with a valid signature, expired or revoked; `name` is its principal's, for the log of refusals."""

    name = ""


class Verifier:
    """Verifies the tokens of one folder. Changed keys and revocations take effect at the next request.

    A folder's first key takes effect within `look_s`.

    Without a key file every principal is an operator, unless `guarded`: keys existed when the server started, and if
    they disappear, nobody is admitted.
    """

    def __init__(
        self, layout: Layout, *, guarded: bool = False, clock: Clock | None = None, look_s: float = 0.0
    ) -> None:
        self._keys, self._register = KeyFile(layout.keys), Register(layout.issued)
        self._keys.look_s = self._register.look_s = look_s
        self._guarded, self._clock = guarded, clock or SystemClock()
        self._signs: object = None
        self._cached: dict[bytes, Claims] = {}

    def is_needed(self) -> bool:
        """Whether a request needs a token."""
        return self._guarded or self._keys.exists()

    def check_files(self) -> None:
        """Raise SetupError if the files exist and are unusable: at the start, not at the first request."""
        if self._keys.exists():
            self._keys.read()
            self._check_register()
            self._register.read()

    def holder(self, authorization: str | None) -> Principal:
        """The principal of this header; TokenInvalid if a token is needed and the header has no valid one."""
        keys_sign, keys = self._keys.current()
        if keys_sign is None and not self._guarded:
            return OPERATOR
        text = _presented(authorization)
        register_sign, (_, revoked) = self._register.current()
        if register_sign is None and keys_sign is not None:
            self._check_register()
        if (keys_sign, register_sign) != self._signs:
            self._cached.clear()
            self._signs = keys_sign, register_sign
        return self._holder(text, keys, revoked)

    def positions(self, holder: Principal) -> PositionCodec:
        """The position codec for this principal."""
        _, keys = self._keys.current()
        if not keys and holder.is_scoped:  # the keys disappeared since the token was verified
            raise _unknown()
        return PositionCodec.of((key.secret for key in keys), opaque=holder.is_scoped)

    def _holder(self, text: str, keys: Sequence[Key], revoked: Revoked) -> Principal:
        digest = sha256(text.encode()).digest()
        claims = self._cached.get(digest)
        if claims is None:
            claims = _verified(text, {key.kid: key.secret for key in keys})
            if revoked.has(claims):
                raise _refused(_unknown("This token is revoked"), claims)
            self._keep(digest, claims)
        try:
            claims.check_time(self._clock.now_us())
        except TokenInvalid as error:
            self._cached.pop(digest, None)
            raise _refused(error, claims) from None
        return claims.holder

    def _keep(self, digest: bytes, claims: Claims) -> None:
        if len(self._cached) >= CACHED_MAX:
            del self._cached[next(iter(self._cached))]
        self._cached[digest] = claims

    def _check_register(self) -> None:
        if not self._register.exists():
            raise SetupError(
                "The register of tokens is missing, which says who is revoked",
                where=str(self._register.path),
                next_step="Bring it back from a copy, or delete keys.json too and make the tokens again",
            )


def _presented(authorization: str | None) -> str:
    if authorization is None:
        raise TokenInvalid("A token is needed here", next_step="Send the header `Authorization: Bearer TOKEN`")
    if authorization[: len(_SCHEME)].lower() != _SCHEME:
        raise TokenInvalid("The header Authorization is not `Bearer TOKEN`", next_step="Send the token so")
    text = authorization[len(_SCHEME) :].strip(" ")
    if len(text) > TOKEN_CHARS_MAX or not text.isascii():
        raise _unknown()
    return text


def _verified(text: str, secrets: dict[str, bytes]) -> Claims:
    """The claims of a token signed with one of these keys. Error messages never quote the token."""
    if _SHAPE.fullmatch(text) is None:
        raise _unknown()
    try:
        kid = jwt.get_unverified_header(text).get("kid")
        secret = secrets.get(kid) if isinstance(kid, str) else None
        if secret is None:
            raise _unknown("It was signed with a key that this server does not have, or no longer")
        decoded = jwt.decode_complete(text, secret, algorithms=[ALGORITHM], options=_OPTIONS)
    except jwt.PyJWTError:
        raise _unknown() from None
    if base64url_encode(decoded["signature"]).decode() != text.rpartition(".")[2]:
        raise _unknown()
    return Claims.parse(decoded["payload"])


def _refused(cause: TokenInvalid, claims: Claims) -> TokenRefused:
    refused = TokenRefused(cause.what, next_step=cause.next_step)
    refused.name = claims.holder.name
    return refused


def _unknown(what: str = "This token is not known here") -> TokenInvalid:
    return TokenInvalid(what, next_step="Ask who runs this server for a new one")
