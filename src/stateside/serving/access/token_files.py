"""Token files: small JSON files that only their owner can read, and the signing keys in `keys.json`.

    {"version": 1, "keys": [{"kid": "9f86d081884c7d65", "secret": "q83vEjRW…", "made": "2026-01-31T…Z"}, …]}

The newest key, the last, signs. All keys verify: a token names its key by `kid`. *Rotating* adds a key; *retiring* an
old key invalidates every token signed with the key. A process that can read `keys.json` can make tokens.

A `SecretFile` is written whole, under a lock, and read again when the file has changed.
"""

from __future__ import annotations

import base64
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import RequestInvalid, SetupError
from stateside.core.json_file import JsonFile
from stateside.core.storage import lock_within
from stateside.serving.stamp import iso_time

LOCK_S_MAX: Final = 5.0
_OTHERS: Final = 0o077
Content = TypeVar("Content")
Sign = tuple[int, int, int, int, int]


class SecretFile(Generic[Content]):
    """A JSON file with mode 600. `parse` converts its document; a missing file has the content `empty`."""

    def __init__(self, path: Path, version: int, parse: Callable[[Mapping[str, Any]], Content], empty: Content) -> None:
        self.path, self._text = path, str(path)
        self.look_s = 0.0  # after a missing file, no `stat` for so long
        self._looked_s = float("-inf")
        self._file: JsonFile[Any] = JsonFile(
            "The file",
            parse,
            dict,
            damage=SetupError,
            next_step="Bring it back from a copy, or delete it and make the tokens again",
            versions=(version,),
            indent=2,
            private=True,
        )
        self._empty = empty
        self._seen: tuple[Sign | None, Content] | None = None

    def exists(self) -> bool:
        return self.path.exists()

    def current(self) -> tuple[Sign | None, Content]:
        """The file's current content, and its sign, which differs whenever the file does; None for no file.

        Costs one `stat` unless the file has changed. SetupError for a file with unsafe permissions or damaged content.
        """
        now_s = time.monotonic()
        if self._seen is not None and self._seen[0] is None and now_s - self._looked_s < self.look_s:
            return self._seen
        sign = self._sign()
        if self._seen is None or sign != self._seen[0]:
            self._seen = sign, self.read()  # sign before read: a write meanwhile is read next time
        self._looked_s = now_s
        return self._seen

    def read(self) -> Content:
        """Read the file; SetupError if other users can read the file, or if its content is damaged."""
        found: Content | None = self._file.read(self.path)
        return self._empty if found is None else found

    def write(self, document: Mapping[str, Any]) -> None:
        """Replace the file in one step. Called within `turn`."""
        self._file.write(self.path, document)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the file's lock for one change; SetupError if another process holds the lock for LOCK_S_MAX."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = self.path.with_name(f".{self.path.name}.lock")
        handle = lock_within(lock, LOCK_S_MAX, mode=0o600)
        if handle is None:
            raise SetupError("Somebody else changes the tokens at this moment", next_step="Try again")
        try:
            if os.fstat(handle).st_mode & _OTHERS:  # by an older Stateside: any user could hold the lock for ever
                os.fchmod(handle, 0o600)
            yield
        finally:
            os.close(handle)

    def _sign(self) -> Sign | None:
        try:
            found = os.stat(self._text)  # noqa: PTH116 - at every request: a Path takes as long as the call
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_mode


VERSION: Final = 1
SECRET_BYTES: Final = 32  # the length of an HMAC-SHA256 digest
KEYS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Key:
    """A signing key. `repr` hides the secret."""

    kid: str
    secret: bytes = field(repr=False)
    made: str


class KeyFile(SecretFile[tuple[Key, ...]]):
    """The signing keys of a folder, oldest first."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, VERSION, _parse, ())

    def rotate(self, clock: Clock | None = None) -> Key:
        """Add a key, which signs from now on; RequestInvalid if there are KEYS_MAX keys."""
        with self.turn():
            keys = self.read()
            if len(keys) >= KEYS_MAX:
                raise RequestInvalid(f"There are {KEYS_MAX} keys already", next_step="Retire those of no use first")
            return self._add(keys, clock)

    def newest(self, clock: Clock | None = None) -> Key:
        """The key that signs; creates the first key."""
        with self.turn():
            keys = self.read()
            return keys[-1] if keys else self._add(keys, clock)

    def retire(self, kid: str) -> None:
        """Remove a key, and with the key all its tokens; RequestInvalid for the newest key, which signs."""
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
