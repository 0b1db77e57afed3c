"""The batch marker: the batch that a replica stands at, stored beside the rows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from stateside.core.positions import Position


@dataclass(frozen=True, slots=True)
class AppliedBatch:
    """A replica's batch: its query, number, position, watermark and commit time."""

    query: str
    batch: int
    position: Position
    watermark_us: int
    committed_us: int
    fingerprint: str = ""  # of the batch's own files: differs for another run of the same batch
    partitions: int = 0  # of the state, all of them in the rows; 0 in replicas from before this field

    def as_json(self) -> bytes:
        """As stored in `meta`."""
        return json.dumps({**asdict(self), "position": str(self.position)}).encode()

    @staticmethod
    def parse(content: bytes) -> AppliedBatch:
        """The batch written by `as_json`. Cached: every answer parses it, mostly for the same batch."""
        return _parse(content)


@lru_cache(maxsize=64)
def _parse(content: bytes) -> AppliedBatch:
    document: dict[str, Any] = json.loads(content)
    return AppliedBatch(**document | {"position": Position.parse(document["position"])})
