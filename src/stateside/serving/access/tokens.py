"""Tokens: who may ask a server what. A folder's `tokens.json`, which only its owner can read, has a line for each.

A token is 32 random bytes, shown once, when it is made. The file has its SHA-256 only: whoever reads the file has no
token, and no slow hash is needed, as nobody can guess 32 bytes. A token reaches the server in the header
`Authorization` and nowhere else; it stands in no URL and in no log.

    {"version": 1, "tokens": [{"name": "emma's page", "customer": "emma", "sha256": "9f86…", "made": "2026-01-31T…Z"}]}

A token with a customer reaches that customer's own data; one without (`null`) is an operator's, and reaches everything.
Without the file everybody is an operator: then a server listens on the loopback interface alone.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from stateside.clock import Clock, SystemClock
from stateside.errors import RequestInvalid, SetupError, TokenInvalid
from stateside.serving.access.holder import OPERATOR, Holder, customer
from stateside.serving.stamp import iso_time
from stateside.storage import try_lock, write_atomically

VERSION: Final = 1
TOKEN_BYTES: Final = 32
PREFIX: Final = "stateside_"  # so that scanners for leaked secrets can know one
NAME_CHARS_MAX: Final = 200
_SCHEME: Final = "bearer "


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the file has it: its name, whose it is, and its hash."""

    name: str
    customer: str | None
    sha256: str
    made: str


class TokenFile:
    """The tokens of a folder. Changes take effect at the next request: the file is looked at each time.

    `guarded` means that there was a file when the server started: if it is gone now, nobody is let in.
    """

    def __init__(self, path: Path, *, guarded: bool = False) -> None:
        self._path, self._guarded = path, guarded
        self._sign: tuple[int, int, int] | None = None
        self._tokens: tuple[Token, ...] = ()

    def exists(self) -> bool:
        """Whether there is a file, so that a token is needed."""
        return self._path.exists()

    def holder(self, authorization: str | None) -> Holder:
        """Who sends this header; TokenInvalid if a token is needed and this is none of them."""
        tokens = self._current()
        if tokens is None:
            return OPERATOR
        presented = _presented(authorization)
        digest, found = _digest(presented), None
        for token in tokens:  # all of them, whichever fits: the time tells nothing
            if hmac.compare_digest(token.sha256, digest):
                found = token
        if found is None:
            raise TokenInvalid("This token is not known here", next_step="Ask who runs this server for a new one")
        return OPERATOR if found.customer is None else customer(found.name, found.customer)

    def tokens(self) -> tuple[Token, ...]:
        """All of them, in the order in which they were made; SetupError for a file that is not safe or not whole."""
        try:
            found = self._path.stat()
            content = self._path.read_bytes()
        except FileNotFoundError:
            return ()
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise SetupError(
                "The file of tokens can be read or written by others than its owner",
                where=str(self._path),
                next_step=f"chmod 600 {self._path}",
            )
        return _parse(content, self._path)

    def add(self, name: str, customer: str | None = None, clock: Clock | None = None) -> str:
        """Make a token and return it: the only time that it is shown. RequestInvalid if the name is taken."""
        if not name.isprintable() or not 1 <= len(name) <= NAME_CHARS_MAX:
            raise RequestInvalid(f"A token's name has 1 to {NAME_CHARS_MAX} characters that can be printed")
        text = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
        made = iso_time((clock or SystemClock()).now_us())
        with _Turn(self._path):
            tokens = self.tokens()
            if any(token.name == name for token in tokens):
                raise RequestInvalid(f"There is a token {name!r} already", next_step="Remove it, or take another name")
            self._store([*tokens, Token(name, customer, _digest(text), made)])
        return text

    def remove(self, name: str) -> None:
        """Let a token be valid no longer. The file stays, empty if it was the last: access does not become open."""
        with _Turn(self._path):
            tokens = self.tokens()
            rest = [token for token in tokens if token.name != name]
            if len(rest) == len(tokens):
                raise RequestInvalid(f"There is no token {name!r}", next_step="`stateside token list` has all of them")
            self._store(rest)

    def _store(self, tokens: Sequence[Token]) -> None:
        document = {"version": VERSION, "tokens": [asdict(token) for token in tokens]}
        write_atomically(self._path, json.dumps(document, indent=2).encode(), mode=0o600)

    def _current(self) -> tuple[Token, ...] | None:
        """The tokens, read anew if the file is another one; None where none is needed."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - at every request: a Path takes as long as the call
        except FileNotFoundError:
            return () if self._guarded else None
        sign = found.st_ino, found.st_mtime_ns, found.st_mode
        if sign != self._sign:
            self._tokens = self.tokens()
            self._sign = sign
        return self._tokens


def check_address(address: str, tokens: TokenFile) -> None:
    """SetupError for an address that others can reach, while no token is needed."""
    if not tokens.exists() and not _is_loopback(address):
        raise SetupError(
            f"Without tokens everybody who reaches {address} could read everything",
            next_step="Make one with `stateside token add NAME --dir FOLDER`, or listen on 127.0.0.1",
        )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _presented(authorization: str | None) -> str:
    if authorization is None:
        raise TokenInvalid("A token is needed here", next_step="Send the header `Authorization: Bearer TOKEN`")
    if authorization[: len(_SCHEME)].lower() != _SCHEME:
        raise TokenInvalid("The header Authorization is not `Bearer TOKEN`", next_step="Send the token so")
    return authorization[len(_SCHEME) :].strip()


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogateescape")).hexdigest()


def _parse(content: bytes, path: Path) -> tuple[Token, ...]:
    try:
        document = json.loads(content)
        if document["version"] == VERSION:
            return tuple(_token(**entry) for entry in document["tokens"])
        reason = f"it has version {document['version']}, this Stateside writes {VERSION}"
    except (ValueError, LookupError, TypeError) as error:
        reason = repr(error)
    raise SetupError(
        f"The file of tokens cannot be read: {reason}",
        where=str(path),
        next_step="Bring it back from a copy, or delete it and make the tokens anew",
    )


def _token(name: str, customer: str | None, sha256: str, made: str) -> Token:
    if len(bytes.fromhex(sha256)) != TOKEN_BYTES:
        raise ValueError(f"the token {name!r} has no SHA-256")
    return Token(name, customer, sha256, made)


class _Turn:
    """One change of the file at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f".{path.name}.lock")

    def __enter__(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = try_lock(self._path)
        if handle is None:
            raise SetupError("Somebody else changes the tokens at this moment", next_step="Try again")
        self._handle = handle

    def __exit__(self, *error: object) -> None:
        os.close(self._handle)
