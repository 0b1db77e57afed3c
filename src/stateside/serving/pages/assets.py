"""The assets: what pages are made of, held in memory, each under an address that has the hash of all of them.

    /assets/1f3c9a0b7d2e/base.css       never another content: browsers keep it for a year and need not ask again

So a page and its modules are always of one version. Modules name each other by `./`, which leads to the same version.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from stateside.serving.pages.page import PAGES, Page

_KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_OWN: Final = "stateside.serving.pages"
_SMALLEST_BYTES: Final = 1_024  # what is smaller is not worth unpacking


@dataclass(frozen=True, slots=True)
class Asset:
    """A file: its type, its bytes, and the same packed, if that is worth it."""

    kind: str
    content: bytes
    packed: bytes | None


class Assets:
    """The files of all packages with pages. A later package's names must not be an earlier one's."""

    def __init__(self, packages: Sequence[str] = ()) -> None:
        self.pages: list[Page] = []
        self._found: dict[str, Asset] = {}
        self._add(_OWN)
        for name in packages:
            self._add(name)
            self.pages += import_module(name).PAGES
        self.pages += PAGES  # an application's own come first
        self.version = self._version()

    def get(self, name: str) -> Asset | None:
        """The asset of this name."""
        return self._found.get(name)

    def address(self, name: str) -> str:
        """Where it is served."""
        return f"/assets/{self.version}/{name}"

    @property
    def size_bytes(self) -> int:
        """Of all of them, unpacked."""
        return sum(len(asset.content) for asset in self._found.values())

    def _add(self, package: str) -> None:
        for file in files(package).joinpath("static").iterdir():
            kind = _KINDS.get(_ending(file))
            if kind is not None:
                assert file.name not in self._found, f"two assets are called {file.name}"
                content = file.read_bytes()
                self._found[file.name] = Asset(kind, content, _packed(kind, content))

    def _version(self) -> str:
        digest = sha256()
        for name, asset in sorted(self._found.items()):
            digest.update(f"{name} {len(asset.content)} ".encode() + asset.content)
        return digest.hexdigest()[:12]


def _ending(file: Traversable) -> str:
    return f".{file.name.rpartition('.')[2]}"


def _packed(kind: str, content: bytes) -> bytes | None:
    if kind == _KINDS[".woff2"] or len(content) < _SMALLEST_BYTES:
        return None
    return gzip.compress(content, mtime=0)
