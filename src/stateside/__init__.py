"""Stateside: the stream processor as a database, on Spark. ARCHITECTURE.md follows one event through the packages.

Public names load on first use: a client needs none of the packages that a server or a pipeline needs.
"""

from typing import TYPE_CHECKING, Any

from stateside.core.extras import lazy

if TYPE_CHECKING:
    from stateside import testing
    from stateside.core import Layout, Position
    from stateside.journal import Event, open_journal
    from stateside.pipeline import sinks, sources
    from stateside.pipeline.app import App, sql
    from stateside.serving.clients import AsyncClient, Client
    from stateside.views import Computed

    __version__: str
else:
    _load = lazy(
        __name__,
        {
            "stateside.core.layout": ["Layout"],
            "stateside.core.positions": ["Position"],
            "stateside.journal": ["Event", "open_journal"],
            "stateside.pipeline.app": ["App", "sql"],
            "stateside.pipeline.sinks": ["sinks"],
            "stateside.pipeline.sources": ["sources"],
            "stateside.serving.clients": ["AsyncClient", "Client"],
            "stateside.testing": ["testing"],
            "stateside.views": ["Computed"],
        },
    )

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("stateside")
        return _load(name)


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "App",
    "AsyncClient",
    "Client",
    "Computed",
    "Event",
    "Layout",
    "Position",
    "__version__",
    "open_journal",
    "sinks",
    "sources",
    "sql",
    "testing",
]
