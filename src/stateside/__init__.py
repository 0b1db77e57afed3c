"""Stateside: the stream processor as a database, on Spark. ARCHITECTURE.md tells the path of an event."""

__version__ = "0.1.0"
