"""The extension of a server: routes, SQL tables and pages of an application, besides its views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from stateside.core.layout import Layout
from stateside.serving.web.route import Route


@dataclass(frozen=True, slots=True)
class Extension:
    """The importable names of an application's additions; each worker process resolves the names for itself.

    `routes` are functions, as `module:function`, from a folder to its further routes. `tables` are functions from a
    folder to the application's tables in SQL (`sql.archive_tables`). `pages` are packages with web pages
    (`serving.pages`).
    """

    routes: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()

    def load_routes(self, layout: Layout) -> list[Route]:
        found: list[Route] = []
        for name in self.routes:
            module, _, attribute = name.partition(":")
            routes: Callable[[Layout], Sequence[Route]] = getattr(import_module(module), attribute)
            found += routes(layout)
        return found


NOTHING = Extension()
