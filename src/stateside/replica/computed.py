"""Computed columns as rollups hold them: their numbers for a row of a replica, from its key's bytes and its buffers."""

from __future__ import annotations

from collections.abc import Sequence

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.computed import ComputedTally, KnownSteps
from stateside.checkpoint.steps import Steps
from stateside.checkpoint.unsafe_row import Value
from stateside.replica.keys import KeyCodec

_TEXT = KeyCodec(["string"])


class ComputedNumbers:
    """The numbers that the computed columns of a view add to its rollups."""

    def __init__(self, catalogue: Catalogue, steps: KnownSteps) -> None:
        names = [column.name for column in catalogue.key]
        buffers = {column.name: column.buffers[0].index for column in catalogue.columns if column.buffers}
        self._columns = [(buffers[each.of], ComputedTally(each.name)) for each in catalogue.computed]
        self._by = [names.index(name) for name in catalogue.computed[0].by]
        self._steps = steps
        self._met: dict[tuple[bytes, ...], Steps | None] = {}  # steps by the key's bytes: decoded once

    def of(self, parts: Sequence[bytes], row: Sequence[Value]) -> list[int]:
        """Those of a row, whose key has these parts; CheckpointInvalid if the table has no steps for it."""
        by = tuple([parts[place] for place in self._by])
        if by not in self._met:
            self._met[by] = self._look_up(by)
        steps, numbers = self._met[by], list[int]()
        for place, tally in self._columns:
            numbers += tally.numbers(steps, row[place])
        return numbers

    def _look_up(self, by: tuple[bytes, ...]) -> Steps | None:
        texts = [_TEXT.decode(part)[0] for part in by]
        return None if None in texts else self._steps.of(tuple(map(str, texts)))
