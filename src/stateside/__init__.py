"""Stateside: the stream processor as a database, on Spark. ARCHITECTURE.md follows one event through the packages."""

from stateside.core.layout import Layout
from stateside.journal import Event, open_journal
from stateside.pipeline import sinks, sources
from stateside.pipeline.app import App, sql
from stateside.views.catalogue import Computed

__version__ = "0.1.0"
__all__ = ["App", "Computed", "Event", "Layout", "__version__", "open_journal", "sinks", "sources", "sql"]
