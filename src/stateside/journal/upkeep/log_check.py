"""The check of the events' order: of every entity 1, 2, 3, …, each once, without gaps.

Memory: a name and a number for each entity, some 150 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stateside.journal.frames import Offsets
from stateside.journal.upkeep.findings import Findings

_MEND = "Keep the segment as it is and find out which writer stored the event; readers count it by its own sequence"


@dataclass(frozen=True, slots=True)
class Numbered:
    """Events as they are read: the sequence of each (0: a repeat, which counts nothing), and who is new."""

    sequences: Offsets
    born: list[int]


class LogCheck:
    """Follows the log. `lasts` has the sequence of each entity's last event so far."""

    def __init__(self, findings: Findings, lasts: Mapping[str, int] | None, *, has_gaps: bool = False) -> None:
        """`lasts`: of all entities that had events before the log begins; None if that is not known.

        `has_gaps`: it is a node's log, and other nodes may have written between two events of an entity.
        """
        self._findings, self._from_birth, self._has_gaps = findings, lasts is not None, has_gaps
        self.lasts: dict[str, int] = dict(lasts or {})

    @property
    def is_all(self) -> bool:
        """Whether every entity is known here."""
        return self._from_birth

    def forget(self) -> None:
        """Events are missing here: what comes next may have any sequence."""
        self.lasts, self._from_birth = {}, False

    def take(self, offsets: Sequence[int] | Offsets, batch: pa.RecordBatch) -> Numbered:
        """The next events, with their offsets."""
        found, born = [], []
        rows = zip(batch.column("entity").to_pylist(), batch.column("sequence").to_pylist(), strict=True)
        for row, (entity, given) in enumerate(rows):
            last = self.lasts.get(entity)
            if last is None:
                born.append(row)
                last = 0 if self._from_birth or given is None else given - 1
            sequence = last + 1 if given is None else given
            if sequence != last + 1 and not (self._has_gaps and sequence > last):
                self._tell(int(offsets[row]), entity, sequence, last)
            found.append(sequence if sequence > last else 0)
            self.lasts[entity] = max(last, sequence)
        return Numbered(np.array(found, np.int64), born)

    def _tell(self, offset: int, entity: str, sequence: int, last: int) -> None:
        kind = "gap" if sequence > last else "order"
        what = f"The event at offset {offset} of {entity!r} has the sequence {sequence} after {last}"
        self._findings.add(kind, what, _MEND)
