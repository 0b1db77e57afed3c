"""The batch that a replica stands at, as it is kept beside the rows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from stateside.core.positions import Position


@dataclass(frozen=True, slots=True)
class AppliedBatch:
    """The batch that a replica stands at: of which query, up to where, under which watermark, from when."""

    query: str
    batch: int
    position: Position
    watermark_us: int
    committed_us: int
    fingerprint: str = ""  # of the batch's own files: another run of the same batch has another one
    partitions: int = 0  # of the state, all of which the rows come from; 0 in replicas that did not note it yet

    def as_json(self) -> bytes:
        """As stored in `meta`."""
        return json.dumps({**asdict(self), "position": str(self.position)}).encode()

    @staticmethod
    def parse(content: bytes) -> AppliedBatch:
        """The batch that `as_json` wrote. Every answer asks for it, and most of them of the same batch."""
        return _parse(content)


@lru_cache(maxsize=64)
def _parse(content: bytes) -> AppliedBatch:
    document: dict[str, Any] = json.loads(content)
    return AppliedBatch(**document | {"position": Position.parse(document["position"])})
