"""Assets of the pages: held in memory, at addresses that contain the hash of all assets.

    /assets/1f3c9a0b7d2e/base.css       immutable: browsers keep the file for a year without asking again

So a page and its modules always have one version. Modules import each other by `./`, which keeps the version.
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
_SMALLEST_BYTES: Final = 1_024  # smaller files are not worth compressing


@dataclass(frozen=True, slots=True)
class Asset:
    """A file: its content type, its bytes, and its gzipped bytes, if worth while."""

    kind: str
    content: bytes
    packed: bytes | None


class Assets:
    """The files of all packages with pages. File names must differ between packages."""

    def __init__(self, packages: Sequence[str] = ()) -> None:
        self.pages: list[Page] = []
        self._found: dict[str, Asset] = {}
        self._add(_OWN)
        for name in packages:
            self._add(name)
            self.pages += import_module(name).PAGES
        self.pages += PAGES  # an application's own pages come first
        self.version = self._version()

    def get(self, name: str) -> Asset | None:
        return self._found.get(name)

    def address(self, name: str) -> str:
        """The path at which the asset is served."""
        return f"/assets/{self.version}/{name}"

    @property
    def size_bytes(self) -> int:
        """The total size, uncompressed."""
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
