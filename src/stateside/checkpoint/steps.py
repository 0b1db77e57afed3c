"""Steps: a number that follows from a quantity piece by piece, as a price does from tiers and allowances.

`steps.json`, beside a view's checkpoint, has the steps of all its rows, by what their keys say:

    {"version": 1, "entries": [{"key": ["basic@3", "call"], "steps": [[0, 0, 1], [6000, 90000, 60]]}, …]}

It only ever grows. Whoever writes the view's rows extends it before the first row that refers to a new entry can be
seen; so a reader that meets an unknown entry reads the file again, and finds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stateside.errors import CheckpointInvalid, ValueOverflow
from stateside.storage import write_atomically

VERSION = 1
_LONG_MAX = 2**63 - 1
_LONG_MIN = -(2**63)

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """Of what lies above a quantity, up to the next step, every `per` cost `micros`."""

    above: int
    micros: int
    per: int

    def __post_init__(self) -> None:
        for name, value in (("above", self.above), ("micros", self.micros), ("per", self.per)):
            if not isinstance(value, int) or isinstance(value, bool) or not _LONG_MIN <= value <= _LONG_MAX:
                raise ValueError(f"a step's {name} is {value!r}, not a whole number of 64 bits")
        if self.above < 0 or self.per < 1:
            raise ValueError(f"a step begins at 0 or above and is per 1 or more, not above {self.above}, {self.per=}")


@dataclass(frozen=True, slots=True)
class Steps:
    """One after the other, from a quantity of 0 on. What lies below 0 counts nothing."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        edges = [step.above for step in self.steps]
        if not edges or edges[0] != 0 or any(low >= high for low, high in pairwise(edges)):
            raise ValueError(f"steps begin above 0 and rise from one to the next, not as {edges}")

    def value(self, quantity: int) -> int:
        """The micros of a quantity: of each step's part, rounded down, added up. ValueOverflow beyond 64 bits."""
        total = sum(part * step.micros // step.per for step, part in self._parts(quantity))
        if not _LONG_MIN <= total <= _LONG_MAX:
            raise ValueOverflow(
                f"A quantity of {quantity} makes {total} micros, more than can be stored",
                next_step="Look for absurd prices or quantities",
            )
        return total

    def values(self, quantities: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The micros of many quantities: the same numbers as `value` gives, and the same error."""
        if not len(quantities):
            return np.empty(0, np.int64)
        if not self._fits(int(quantities.max())):
            return np.array([self.value(quantity) for quantity in quantities.tolist()], np.int64)
        total = np.zeros(len(quantities), np.int64)
        for step, up_to in self._edges():
            part = np.clip(quantities, step.above, _LONG_MAX if up_to is None else up_to) - step.above
            whole, rest = np.divmod(part, step.per)
            total += whole * step.micros + rest * step.micros // step.per
        return total

    def as_json(self) -> list[list[int]]:
        """The steps as they stand in a file."""
        return [[step.above, step.micros, step.per] for step in self.steps]

    @classmethod
    def parse(cls, content: Any) -> Steps:
        """The steps from a file; ValueError, with the reason, for what are none."""
        try:
            return cls(tuple(Step(*numbers) for numbers in content))
        except TypeError as error:
            raise ValueError(f"{content!r} are no steps: {error}") from error

    def _edges(self) -> Iterator[tuple[Step, int | None]]:
        """Each step, and the quantity at which the next one takes over."""
        yield from zip(self.steps, [*(step.above for step in self.steps[1:]), None], strict=True)

    def _parts(self, quantity: int) -> Iterator[tuple[Step, int]]:
        """Each step with the part of the quantity that it is for."""
        for step, up_to in self._edges():
            yield step, max(0, (quantity if up_to is None else min(quantity, up_to)) - step.above)

    def _fits(self, quantity_max: int) -> bool:
        """Whether up to this quantity no number on the way to a value is beyond 64 bits."""
        whole = sum(part * abs(step.micros) // step.per + abs(step.micros) for step, part in self._parts(quantity_max))
        return whole <= _LONG_MAX and all(abs(step.micros) * step.per <= _LONG_MAX for step in self.steps)


@dataclass(frozen=True, slots=True)
class StepTable:
    """The steps of a view's rows, by those columns of their key that say which."""

    entries: Mapping[Key, Steps]

    @classmethod
    def load(cls, path: Path) -> StepTable:
        """The table of a file; an empty one where there is none yet. CheckpointInvalid if it is damaged."""
        try:
            content = json.loads(path.read_bytes())
            if content["version"] != VERSION:
                raise ValueError(f"version {content['version']!r}, not {VERSION}")
            return cls({tuple(entry["key"]): Steps.parse(entry["steps"]) for entry in content["entries"]})
        except FileNotFoundError:
            return cls({})
        except (ValueError, LookupError, TypeError) as error:
            raise CheckpointInvalid(
                f"The steps of the view cannot be read: {error}",
                where=str(path),
                next_step="Restore this file from a copy",
            ) from error

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, key: Sequence[str]) -> Steps | None:
        """The steps of a key; None if this table has none, which a newer one may have."""
        return self.entries.get(tuple(key))

    def steps(self, key: Sequence[str], path: Path) -> Steps:
        """The steps of a key; CheckpointInvalid, which names it, if they are missing. `path` is for the message."""
        found = self.get(key)
        if found is None:
            raise CheckpointInvalid(
                f"There are no steps for {'/'.join(key)}",
                where=str(path),
                next_step="Restore this file from a copy: it must have an entry for each that a row refers to",
            )
        return found

    def extended(self, entries: Iterable[tuple[Key, Steps]]) -> StepTable:
        """With these entries too; CheckpointInvalid if one is there already with other steps."""
        merged = dict(self.entries)
        for key, steps in entries:
            if merged.setdefault(key, steps) != steps:
                raise CheckpointInvalid(
                    f"The steps for {'/'.join(key)} are {steps.as_json()}, but rows were shown with "
                    f"{merged[key].as_json()}",
                    next_step="Steps never change: give the new ones another name or version",
                )
        return StepTable(merged)

    def save(self, path: Path) -> None:
        """Replace the file in one step, durably; readers see the old table or this one."""
        entries = [{"key": list(key), "steps": steps.as_json()} for key, steps in sorted(self.entries.items())]
        write_atomically(path, json.dumps({"version": VERSION, "entries": entries}).encode())


def extend_steps(path: Path, entries: Mapping[Key, Steps]) -> StepTable:
    """Have these entries in the file, which is written only if one is new. There is one writer: the view's sink."""
    table = StepTable.load(path)
    extended = table.extended(entries.items())
    if len(extended) > len(table):
        extended.save(path)
    return extended
