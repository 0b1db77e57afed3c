"""Stateside: the stream processor as a database, on Spark. ARCHITECTURE.md tells the path of an event."""

from stateside.checkpoint.catalogue import Computed
from stateside.layout import Layout
from stateside.pipeline import sinks, sources
from stateside.pipeline.app import App
from stateside.pipeline.text import sql

__version__ = "0.1.0"
__all__ = ["App", "Computed", "Layout", "__version__", "sinks", "sources", "sql"]
