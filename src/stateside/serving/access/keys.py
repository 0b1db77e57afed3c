"""The keys that tokens are signed with: a folder's `keys.json`, which only its owner can read.

    {"version": 1, "keys": [{"kid": "9f86d081884c7d65", "secret": "q83vEjRW…", "made": "2026-01-31T…Z"}, …]}

The newest one, the last, signs. All of them verify: a token says by `kid` which one it was signed with. To *rotate* is
to add one; to *retire* an old one is to end every token that it signed. Whoever can read this file can make tokens.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stateside.clock import Clock, SystemClock
from stateside.errors import RequestInvalid
from stateside.serving.access.secret_file import SecretFile
from stateside.serving.stamp import iso_time

VERSION: Final = 1
SECRET_BYTES: Final = 32  # as long as what HMAC-SHA256 makes of it
KEYS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Key:
    """One key. Its secret is not shown by `repr`."""

    kid: str
    secret: bytes = field(repr=False)
    made: str


class KeyFile(SecretFile[tuple[Key, ...]]):
    """The keys of a folder, oldest first."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, VERSION, _parse, ())

    def rotate(self, clock: Clock | None = None) -> Key:
        """Add a key, which signs from now on; RequestInvalid if there are too many to add one."""
        with self.turn():
            keys = self.read()
            if len(keys) >= KEYS_MAX:
                raise RequestInvalid(f"There are {KEYS_MAX} keys already", next_step="Retire those of no use first")
            return self._add(keys, clock)

    def newest(self, clock: Clock | None = None) -> Key:
        """The key that signs; the first one is made here."""
        with self.turn():
            keys = self.read()
            return keys[-1] if keys else self._add(keys, clock)

    def retire(self, kid: str) -> None:
        """Remove a key, and with it all tokens that it signed; RequestInvalid for the newest, which is needed."""
        with self.turn():
            keys = self.read()
            if kid not in {key.kid for key in keys}:
                raise RequestInvalid(
                    f"There is no key {kid[:80]!r}", next_step="`stateside token keys` has all of them"
                )
            if kid == keys[-1].kid:
                raise RequestInvalid(
                    "This is the newest key, which signs", next_step="`stateside token rotate` makes another one first"
                )
            self._store([key for key in keys if key.kid != kid])

    def _add(self, keys: Sequence[Key], clock: Clock | None) -> Key:
        made = iso_time((clock or SystemClock()).now_us())
        key = Key(secrets.token_hex(8), secrets.token_bytes(SECRET_BYTES), made)
        self._store([*keys, key])
        return key

    def _store(self, keys: Sequence[Key]) -> None:
        self.write({"keys": [{"kid": key.kid, "secret": _encode(key.secret), "made": key.made} for key in keys]})


def _parse(document: Mapping[str, Any]) -> tuple[Key, ...]:
    keys = tuple(Key(str(each["kid"]), _decode(each["secret"]), str(each["made"])) for each in document["keys"])
    if any(len(key.secret) != SECRET_BYTES for key in keys) or len({key.kid for key in keys}) != len(keys):
        raise ValueError("a key of the wrong length, or one twice")
    return keys


def _encode(secret: bytes) -> str:
    return base64.urlsafe_b64encode(secret).decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text.encode(), altchars=b"-_", validate=True)
