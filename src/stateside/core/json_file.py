"""Small JSON files with typed content: written in one step, with one error for a damaged file."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from stateside.core.errors import SetupError, StateError, StatesideError

PRIVATE_MODE: Final = 0o600
_OTHERS: Final = 0o077
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, StatesideError)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JsonFile(Generic[T]):
    """A kind of JSON file. `parse` makes the value of a JSON document, `dump` is its inverse.

    If the content is no JSON, or `parse` fails, the file is damaged: `damage` is raised, with `what`, the reason, the
    path and `next_step`. `versions`: the versions read, the last of which is written.

    `durable`, `make_folder`: as in `write_atomically`. A `private` file has mode 600, is refused if other users may
    read or write the file, and errors do not quote its content.
    """

    what: str
    parse: Callable[[Any], T]
    dump: Callable[[T], Any] = asdict  # type: ignore[assignment]
    damage: type[StatesideError] = StateError
    next_step: str = "Restore this file from a copy"
    versions: tuple[int, ...] = ()
    indent: int | None = None
    durable: bool = True
    make_folder: bool = True
    private: bool = False

    def read(self, path: Path) -> T | None:
        """The file's value; None without a file. Raises `damage`."""
        try:
            with path.open("rb") as file:
                mode, content = os.fstat(file.fileno()).st_mode, file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if self.private and stat.S_IMODE(mode) & _OTHERS:
            raise SetupError(
                "The file can be read or written by others than its owner",
                where=str(path),
                next_step=f"chmod 600 {path}",
            )
        return self.decode(content, str(path))

    def load(self, path: Path) -> T:
        """As `read`; a missing file is damage too, and so is every other error of the file system."""
        try:
            return self.decode(path.read_bytes(), str(path))
        except OSError as error:
            raise self._damaged(error, str(path)) from error

    def read_if_valid(self, path: Path) -> T | None:
        """The file's value; None without a file, or for a damaged one, such as a loss of power leaves."""
        try:
            return self.read(path)
        except self.damage:
            return None

    def write(self, path: Path, value: T, *, durable: bool | None = None) -> None:
        """Replace the file in one step. `durable` overrides the kind's own."""
        from stateside.core.storage import write_atomically  # brings pyarrow, which a client has no need of

        write_atomically(
            path,
            self.encode(value),
            durable=self.durable if durable is None else durable,
            mode=PRIVATE_MODE if self.private else 0o666,
            make_folder=self.make_folder,
        )

    def encode(self, value: T) -> bytes:
        document = self.dump(value)
        if self.versions:
            document = {"version": self.versions[-1], **document}
        return json.dumps(document, indent=self.indent).encode()

    def decode(self, content: bytes, where: str) -> T:
        """The value in a file's content; `where` is for the error, of the class `damage`."""
        try:
            document = json.loads(content)
            version = document.pop("version", None) if self.versions else None
            if not self.versions or version in self.versions:
                return self.parse(document)
        except _DAMAGE as error:
            raise self._damaged(error, where) from None if self.private else error
        raise self.damage(
            f"{self.what} cannot be read: it has version {version!r:.20}, this Stateside writes {self.versions[-1]}",
            where=where,
            next_step="Use the Stateside that wrote this file, or a new folder",
        )

    def _damaged(self, error: Exception, where: str) -> StatesideError:
        if self.private:
            reason = type(error).__name__  # not its text, which may show the file's content
        else:
            reason = repr(error) if isinstance(error, (LookupError, OSError)) else str(error)
        return self.damage(f"{self.what} cannot be read: {reason}", where=where, next_step=self.next_step)
