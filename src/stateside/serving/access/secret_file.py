"""A small JSON file that only its owner can read: written whole, under a lock, and read anew when it has changed."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from stateside.errors import SetupError
from stateside.storage import lock_within, write_atomically

LOCK_S_MAX: Final = 5.0
_OTHERS: Final = 0o077

Content = TypeVar("Content")
Sign = tuple[int, int, int, int, int]


class SecretFile(Generic[Content]):
    """One such file. `parse` makes its content of the JSON document; a file that is not there has `empty`."""

    def __init__(self, path: Path, version: int, parse: Callable[[Mapping[str, Any]], Content], empty: Content) -> None:
        self.path, self._text = path, str(path)
        self.look_s = 0.0  # for so long nobody looks whether there is a file now, where there was none
        self._looked_s = float("-inf")
        self._version, self._parse, self._empty = version, parse, empty
        self._seen: tuple[Sign | None, Content] | None = None

    def exists(self) -> bool:
        """Whether there is a file."""
        return self.path.exists()

    def current(self) -> tuple[Sign | None, Content]:
        """What the file has at this moment, and a sign that differs whenever the file does; None for no file.

        A look at the file system, unless it has changed. SetupError for a file that is not safe or not whole.
        """
        now_s = time.monotonic()
        if self._seen is not None and self._seen[0] is None and now_s - self._looked_s < self.look_s:
            return self._seen
        sign = self._sign()
        if self._seen is None or sign != self._seen[0]:
            self._seen = sign, self.read()  # the sign from before: what is written meanwhile has another, and is read
        self._looked_s = now_s
        return self._seen

    def read(self) -> Content:
        """What the file has; SetupError if others can read it, or if it is not whole."""
        try:
            with self.path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                content = file.read()
        except FileNotFoundError:
            return self._empty
        if stat.S_IMODE(mode) & _OTHERS:
            raise SetupError(
                "The file can be read or written by others than its owner",
                where=str(self.path),
                next_step=f"chmod 600 {self.path}",
            )
        return self._parsed(content)

    def write(self, document: Mapping[str, Any]) -> None:
        """Replace the file in one step. Called within `turn`."""
        content = json.dumps({"version": self._version, **document}, indent=2).encode()
        write_atomically(self.path, content, mode=0o600)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One change of the file at a time; SetupError if somebody else does not end theirs in time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = self.path.with_name(f".{self.path.name}.lock")
        handle = lock_within(lock, LOCK_S_MAX, mode=0o600)
        if handle is None:
            raise SetupError("Somebody else changes the tokens at this moment", next_step="Try again")
        try:
            if os.fstat(handle).st_mode & _OTHERS:  # of an older Stateside: whoever can open it can hold it for ever
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

    def _parsed(self, content: bytes) -> Content:
        try:
            document = json.loads(content)
            if document["version"] == self._version:
                return self._parse(document)
            reason = f"it has version {document['version']}, this Stateside writes {self._version}"
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            reason = type(error).__name__  # not its text, which may show what the file has
        raise SetupError(
            f"The file cannot be read: {reason}",
            where=str(self.path),
            next_step="Bring it back from a copy, or delete it and make the tokens anew",
        )
