"""The extension of a server: routes, SQL tables, pages and metrics of an application, besides its views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from stateside.core.layout import Layout
from stateside.serving.health.metrics import Measure
from stateside.serving.web.route import Route


@dataclass(frozen=True, slots=True)
class Extension:
    """The importable names of an application's additions; each worker process resolves the names for itself.

    `routes` are functions, as `module:function`, from a folder to its further routes. `tables` are functions from a
    folder to the application's tables in SQL (`sql.archive_tables`). `pages` are packages with web pages
    (`serving.pages`). `metrics` are functions from a folder to a function that measures: it gets the request for
    metrics and returns `Metric`s, named after the application, without reading rows.
    """

    routes: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    def load_routes(self, layout: Layout) -> list[Route]:
        found: list[Route] = []
        for name in self.routes:
            routes: Callable[[Layout], Sequence[Route]] = _loaded(name)
            found += routes(layout)
        return found

    def load_metrics(self, layout: Layout) -> list[Measure]:
        makers: list[Callable[[Layout], Measure]] = [_loaded(name) for name in self.metrics]
        return [make(layout) for make in makers]


def _loaded(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


NOTHING = Extension()
