"""What an application brings to the server of its folder, besides its views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from stateside.core.layout import Layout
from stateside.serving.web.route import Route


@dataclass(frozen=True, slots=True)
class Extension:
    """Names, which each worker process looks up for itself: it is passed on to them.

    `routes` are functions that make further routes for a folder, as `module:function`. `tables`, in the same way, give
    the gates of the application's tables in SQL (`sql.sealed`). `pages` are packages with pages (`pages`).
    """

    routes: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()

    def load_routes(self, layout: Layout) -> list[Route]:
        """The further routes for this folder."""
        found: list[Route] = []
        for name in self.routes:
            module, _, attribute = name.partition(":")
            routes: Callable[[Layout], Sequence[Route]] = getattr(import_module(module), attribute)
            found += routes(layout)
        return found


NOTHING = Extension()
