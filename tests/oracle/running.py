"""Running a query in the shared session."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame


def start(frame: DataFrame, mode: str, checkpoint: Path) -> None:
    """Start a query, or start it again, and wait until it has taken all that there is."""
    writer = frame.writeStream.format("noop").outputMode(mode).trigger(availableNow=True)
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
