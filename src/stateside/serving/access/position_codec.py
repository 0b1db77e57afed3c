"""The position codec: plain offsets for unscoped principals, opaque texts for scoped ones.

A position shows how many events the journal has, so how much all customers write together. A scoped token therefore
gets

    ~ base64url(AES-SIV(key, text))    text: the position with offsets of 19 digits, so that its length reveals nothing

AES-SIV (RFC 5297) is deterministic: equal positions have equal texts on every server of the folder, so that answers can
be cached and compared. The encryption key is derived (HKDF) from each of the folder's signing keys; the newest
encrypts, all decrypt. Positions encrypted with a retired key are refused.

A scan's cursor names the last key that a page looked at, possibly another customer's: a scoped token gets the cursor as

    ~ base64url(AES-SIV(key, cursor, associated data "cursor"))    so a cursor is no position, and the reverse

A scoped token still sees the batch's number, commit time, watermark and age.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from stateside.core.errors import CursorInvalid, PositionInvalid
from stateside.core.positions import Position
from stateside.serving.stamp import Stamp

KEY_BYTES: Final = 64  # AES-256-SIV takes two keys of 32 bytes
_PURPOSE: Final = b"stateside: opaque positions"
_CURSOR: Final = [b"cursor"]
_OFFSET: Final = "offset"  # not a partition's name: so an offset's text is never a journal position


@dataclass(frozen=True, slots=True)
class PositionCodec:
    """The codec for one principal. The last of the `keys` encrypts, all decrypt."""

    keys: tuple[bytes, ...] = field(default=(), repr=False)
    opaque: bool = False

    @classmethod
    def of(cls, secrets: Iterable[bytes], *, opaque: bool) -> PositionCodec:
        """The codec for these signing keys, oldest first."""
        return cls(tuple(map(_derived, secrets)), opaque)

    def encode(self, position: Position) -> Position:
        """The position as shown; an opaque one stays unchanged."""
        return _encrypted(self.keys[-1], position) if self.opaque and not position.opaque else position

    def decode(self, position: Position) -> Position:
        """The position given in a request; PositionInvalid for a plain one where positions are opaque."""
        if not position.opaque:
            if self.opaque and position != Position.start():  # else trying would find the journal's end
                raise PositionInvalid(
                    "This token's positions are opaque, and a plain one was given",
                    next_step="Give a position, or a receipt, as this server gave it to a scoped token",
                )
            return position
        found = Position.start()
        for text in position.opaque:
            found = found.joined(self._decrypted(text))
        return found

    def stamp(self, stamp: Stamp) -> Stamp:
        """The stamp with its position as shown."""
        return replace(stamp, position=self.encode(stamp.position)) if self.opaque else stamp

    def offset(self, offset: int) -> int | str:
        """A journal offset as shown: the number, or an opaque text."""
        return str(self.encode(Position.of({_OFFSET: offset + 1}))) if self.opaque else offset

    def parse_offset(self, text: str) -> int:
        """The offset of an opaque text made by `offset`; PositionInvalid for any other text."""
        found = self.decode(Position.parse(text))
        if list(found.as_dict()) != [_OFFSET]:
            raise _unknown()
        return found[_OFFSET] - 1

    def cursor(self, text: str) -> str:
        """A scan's cursor as shown."""
        return _text(AESSIV(self.keys[-1]).encrypt(text.encode(), _CURSOR)) if self.opaque else text

    def parse_cursor(self, text: str) -> str:
        """The cursor given in a request; CursorInvalid for a text not made by `cursor`."""
        if not self.opaque:
            return text
        try:
            return self._opened(text, _CURSOR)
        except ValueError:
            raise CursorInvalid(
                "This cursor is none of this server's, or was given under a key that is retired",
                next_step="Begin again, without it",
            ) from None

    def _decrypted(self, text: str) -> Position:
        try:
            return Position.parse(self._opened(text))
        except ValueError:
            raise _unknown() from None

    def _opened(self, text: str, associated: list[bytes] | None = None) -> str:
        """The plain text of an opaque one; ValueError if no key decrypts it."""
        content = base64.b64decode(text[1:] + "=" * (-len(text[1:]) % 4), altchars=b"-_", validate=True)
        if _text(content) != text:
            raise ValueError("base64 has several texts for the same bytes, and one of them was given")
        for key in reversed(self.keys):
            try:
                return AESSIV(key).decrypt(content, associated).decode()
            except InvalidTag:
                continue
        raise ValueError("none of the keys made it")


PLAIN: Final = PositionCodec()


@lru_cache(maxsize=64)  # few keys, needed at every request
def _derived(secret: bytes) -> bytes:
    return HKDF(SHA512(), KEY_BYTES, salt=None, info=_PURPOSE).derive(secret)


@lru_cache(maxsize=1_024)  # many answers share a batch
def _encrypted(key: bytes, position: Position) -> Position:
    text = ",".join(f"{partition}:{offset:019}" for partition, offset in position.parts) or str(position)
    content = AESSIV(key).encrypt(text.encode(), None)
    return Position(opaque=(_text(content),))


def _text(content: bytes) -> str:
    return "~" + base64.urlsafe_b64encode(content).decode().rstrip("=")


def _unknown() -> PositionInvalid:
    return PositionInvalid(
        "This position is none of this server's, or was given under a key that is retired",
        next_step="Take the one of a newer answer or receipt, or ask without min_position",
    )
