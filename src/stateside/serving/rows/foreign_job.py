"""The file about a foreign job (one that Stateside did not start): refused views, and what is awaited."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass

from stateside.core.layout import Layout
from stateside.core.storage import write_atomically
from stateside.views.inference import Refusal


@dataclass(frozen=True, slots=True)
class ForeignJob:
    """`note` says what is awaited, or wrong, with the checkpoint as a whole."""

    note: str | None = None
    refused: tuple[Refusal, ...] = ()

    @classmethod
    def load(cls, layout: Layout) -> ForeignJob:
        """The file's content; empty in an application's folder, or if the file cannot be read."""
        with suppress(FileNotFoundError, ValueError, TypeError, LookupError):
            document = json.loads(layout.inferred.read_bytes())
            return cls(document["note"], tuple(Refusal(**refusal) for refusal in document["refused"]))
        return cls()

    def store(self, layout: Layout) -> None:
        """Write the file if its content changes."""
        if self != ForeignJob.load(layout):
            write_atomically(layout.inferred, json.dumps(asdict(self), indent=2).encode(), durable=False)
