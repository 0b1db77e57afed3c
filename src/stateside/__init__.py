"""Stateside: the stream processor as a database, on Spark. ARCHITECTURE.md tells the path of an event."""

from stateside.pipeline.app import App

__version__ = "0.1.0"
__all__ = ["App", "__version__"]
