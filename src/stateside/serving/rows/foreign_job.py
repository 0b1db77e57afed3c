"""The file about a foreign job (one that Stateside did not start): refused views, and what is awaited."""

from __future__ import annotations

from dataclasses import dataclass

from stateside.core.json_file import JsonFile
from stateside.core.layout import Layout
from stateside.views.inference import Refusal


@dataclass(frozen=True, slots=True)
class ForeignJob:
    """`note` says what is awaited, or wrong, with the checkpoint as a whole."""

    note: str | None = None
    refused: tuple[Refusal, ...] = ()

    @classmethod
    def load(cls, layout: Layout) -> ForeignJob:
        """The file's content; empty in an application's folder, or if the file cannot be read."""
        return _FILE.read_if_valid(layout.inferred) or cls()

    def store(self, layout: Layout) -> None:
        """Write the file if its content changes."""
        if self != ForeignJob.load(layout):
            _FILE.write(layout.inferred, self)


_FILE = JsonFile(
    "The result of the inference",
    lambda document: ForeignJob(document["note"], tuple(Refusal(**refusal) for refusal in document["refused"])),
    indent=2,
    durable=False,
)
