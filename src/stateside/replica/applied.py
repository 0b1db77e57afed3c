"""The batch that a replica stands at, as it is kept beside the rows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from stateside.positions import Position


@dataclass(frozen=True, slots=True)
class AppliedBatch:
    """The batch that a replica stands at: of which query, up to where, under which watermark, from when."""

    query: str
    batch: int
    position: Position
    watermark_us: int
    committed_us: int
    fingerprint: str = ""  # of the batch's own files: another run of the same batch has another one

    def as_json(self) -> bytes:
        """As stored in `meta`."""
        return json.dumps({**asdict(self), "position": str(self.position)}).encode()

    @classmethod
    def parse(cls, content: bytes) -> AppliedBatch:
        """The batch that `as_json` wrote."""
        document: dict[str, Any] = json.loads(content)
        return cls(**document | {"position": Position.parse(document["position"])})
