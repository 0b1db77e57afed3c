"""The newest batches of a view as Spark reported them, for people who look on: when, how long, and what took the time.

The runner keeps them in `progress.jsonl`, a line each; here only the file's end is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from stateside.checkpoint.provider import counted_rows

BATCHES_SHOWN: Final = 60
_TAIL_BYTES: Final = 512 << 10  # a line has about 3 KB, and 6 KB with several operators
_PARTS: Final = {
    "ask": ("latestOffset", "getBatch"),
    "plan": ("queryPlanning",),
    "log": ("walCommit",),
    "work": ("addBatch",),
    "commit": ("commitOffsets",),
}


def newest_batches(path: Path, most: int = BATCHES_SHOWN) -> list[dict[str, Any]]:
    """The newest batches in this file, oldest first; none where there is no such file."""
    found = []
    for line in _last_lines(path):
        try:
            found.append(shown(json.loads(line)))
        except (ValueError, LookupError, TypeError):  # a line that is cut short, at either end of what was read
            continue
    return found[-most:]


def shown(progress: Mapping[str, Any]) -> dict[str, Any]:
    """What Spark reported of one batch, as far as pages show it."""
    took = progress["durationMs"]
    return {
        "batch": progress["batchId"],
        "time": progress["timestamp"],
        "duration_ms": took["triggerExecution"],
        "parts_ms": {part: sum(took.get(name, 0) for name in names) for part, names in _PARTS.items()},
        "rows": progress["numInputRows"],
        "rows_per_s": progress.get("processedRowsPerSecond"),
        "watermark": progress.get("eventTime", {}).get("watermark"),
        "dead_letters": progress.get("deadLetters", 0),
        "operators": [_operator(each) for each in progress.get("stateOperators", ())],
    }


def _operator(reported: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": reported["operatorName"],
        "rows": counted_rows(reported),
        "updated": reported["numRowsUpdated"],
        "removed": reported.get("numRowsRemoved", 0),
        "late": reported.get("numRowsDroppedByWatermark", 0),
        "bytes": reported["memoryUsedBytes"],
        "commit_ms": reported.get("commitTimeMs", 0),
    }


def _last_lines(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().splitlines()
    except FileNotFoundError:
        return []
