"""Computed columns: a long, computed from one of a row's columns when the row is read or added to a rollup.

    value = steps of (the texts of `by`), applied to the column `of`;  null where `of` or one of `by` is null

Steps are a piecewise linear function of a quantity, as a price is of tiers and allowances. `steps.json`, beside a
view's checkpoint, has the steps of all its rows, by the texts of their keys:

    {"version": 1, "entries": [{"key": ["basic@3", "call"], "steps": [[0, 0, 1], [6000, 90000, 60]]}, …]}

The file only ever grows. Its writer, mostly the view's sink, adds an entry before the commit of the first batch that
needs the entry, and never changes one: so a value is the same whenever and wherever it is computed. A reader that meets
an unknown entry reads the file again; an entry still missing is an error, never a guess.

A view has one table of steps. All its computed columns are therefore `by` the same columns of its key.
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

from stateside.core.errors import CheckpointInvalid, ValueOverflow, ViewInvalid
from stateside.core.storage import write_atomically
from stateside.spark_state.types import Primitive, parse_type
from stateside.spark_state.unsafe_row import Value
from stateside.views.aggregates import Aggregate, Partial, TrySum, aggregate_of
from stateside.views.catalogue import Catalogue, Computed, StateColumn, ViewColumn

VERSION = 1
_LONG_MAX = 2**63 - 1
_LONG_MIN = -(2**63)
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A price per unit: the quantity above `above`, up to the next step, costs `micros` per `per`."""

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
    """Consecutive steps, from a quantity of 0 on. Quantities below 0 count nothing."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        edges = [step.above for step in self.steps]
        if not edges or edges[0] != 0 or any(low >= high for low, high in pairwise(edges)):
            raise ValueError(f"steps begin above 0 and rise from one to the next, not as {edges}")

    def value(self, quantity: int) -> int:
        """The micros of a quantity: the sum over each step's part, rounded down. ValueOverflow beyond 64 bits."""
        total = sum(part * step.micros // step.per for step, part in self._parts(quantity))
        if not _LONG_MIN <= total <= _LONG_MAX:
            raise ValueOverflow(
                f"A quantity of {quantity} makes {total} micros, more than can be stored",
                next_step="Look for absurd prices or quantities",
            )
        return total

    def values(self, quantities: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The micros of many quantities: the same numbers as from `value`, and the same error."""
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
        return [[step.above, step.micros, step.per] for step in self.steps]

    @classmethod
    def parse(cls, content: Any) -> Steps:
        """The steps from a file; ValueError, with the reason, for invalid content."""
        try:
            return cls(tuple(Step(*numbers) for numbers in content))
        except TypeError as error:
            raise ValueError(f"{content!r} are no steps: {error}") from error

    def _edges(self) -> Iterator[tuple[Step, int | None]]:
        """Each step, and the quantity at which the next one takes over."""
        yield from zip(self.steps, [*(step.above for step in self.steps[1:]), None], strict=True)

    def _parts(self, quantity: int) -> Iterator[tuple[Step, int]]:
        """Each step with its part of the quantity."""
        for step, up_to in self._edges():
            yield step, max(0, (quantity if up_to is None else min(quantity, up_to)) - step.above)

    def _fits(self, quantity_max: int) -> bool:
        """Whether no intermediate number exceeds 64 bits for quantities up to this one."""
        whole = sum(part * abs(step.micros) // step.per + abs(step.micros) for step, part in self._parts(quantity_max))
        return whole <= _LONG_MAX and all(abs(step.micros) * step.per <= _LONG_MAX for step in self.steps)


@dataclass(frozen=True, slots=True)
class StepTable:
    """The steps of a view's rows, by the texts of their `by` columns."""

    entries: Mapping[Key, Steps]

    @classmethod
    def load(cls, path: Path) -> StepTable:
        """The table in a file; empty if the file does not exist yet. CheckpointInvalid if it is damaged."""
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
        """The steps of a key; None if this table has none (a newer table may have them)."""
        return self.entries.get(tuple(key))

    def steps(self, key: Sequence[str], path: Path) -> Steps:
        """The steps of a key; CheckpointInvalid, with the key, if they are missing. `path` is for the message."""
        found = self.get(key)
        if found is None:
            raise CheckpointInvalid(
                f"There are no steps for {'/'.join(key)}",
                where=str(path),
                next_step="Restore this file from a copy: it must have an entry for each that a row refers to",
            )
        return found

    def extended(self, entries: Iterable[tuple[Key, Steps]]) -> StepTable:
        """The table with more entries; CheckpointInvalid if a key exists already with other steps."""
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
    """Add the entries to the file, written only if one is new. There is one writer: the view's sink."""
    table = StepTable.load(path)
    extended = table.extended(entries.items())
    if len(extended) > len(table):
        extended.save(path)
    return extended


TYPE = "long"
_EXAMPLE = 'Write it like computed=[Computed("amount_micros", of="quantity", by=("plan", "type"))]'


def declared_computed(view: str, key: Sequence[str], computed: Sequence[Computed]) -> tuple[Computed, ...]:
    """The computed columns of a view's declaration; ViewInvalid if one is impossible with this key."""
    if isinstance(computed, Computed) or not all(isinstance(each, Computed) for each in computed):
        raise _refused(view, f"its computed is {computed!r}, not a list of Computed(…)", _EXAMPLE)
    for each in computed:
        if isinstance(each.by, str) or not each.by:
            raise _refused(view, f"its computed column {each.name!r} is by {each.by!r}, no list of columns", _EXAMPLE)
        for name in each.by:
            if name not in key:
                raise _refused(
                    view,
                    f"its computed column {each.name!r} is by {name!r}, not in its key",
                    f"Its key has {list(key)}",
                )
    declared = tuple(Computed(each.name, each.of, tuple(each.by)) for each in computed)
    if len({each.by for each in declared}) > 1:
        raise _refused(
            view,
            f"its computed columns are by different columns, {[list(each.by) for each in declared]}",
            "A view has one table of steps: let them be by the same columns, in the same order",
        )
    return declared


def check_computed(catalogue: Catalogue) -> None:
    """ViewInvalid if the view lacks a column that a computed one needs, or has it with another type."""
    if not catalogue.computed:
        return
    if catalogue.kind == "state-variable":
        raise _refused(
            catalogue.view,
            "it has computed columns of a state variable, whose columns are not known before it runs",
            "Leave them out, or compute the value in the processor that keeps the variable",
        )
    taken = [column.name for column in catalogue.key] + [column.name for column in catalogue.columns]
    for each in catalogue.computed:
        if each.name in taken:
            raise _refused(
                catalogue.view, f"two of its columns are called {each.name!r}", "Give the computed one another name"
            )
        taken.append(each.name)
        _check_of(catalogue, each)
        _check_by(catalogue, each)


def _check_of(catalogue: Catalogue, computed: Computed) -> None:
    columns = {column.name: column for column in catalogue.columns}
    column = columns.get(computed.of)
    if column is None:
        raise _refused(
            catalogue.view,
            f"its computed column {computed.name!r} is of {computed.of!r}, which it does not have",
            f"Its columns are: {', '.join(columns) or 'none'}",
        )
    made = aggregate_of(column)
    if not (made.is_stored and made.tally_size) or made.type != Primitive(TYPE):
        raise _refused(
            catalogue.view,
            f"its computed column {computed.name!r} is of {computed.of!r}, {column.expression} {column.type}",
            "Let it be of a sum of whole numbers (cast them to long) or of a count",
        )


def _check_by(catalogue: Catalogue, computed: Computed) -> None:
    for column in catalogue.key:
        if column.name in computed.by and parse_type(column.type) != Primitive("string"):
            raise _refused(
                catalogue.view,
                f"its computed column {computed.name!r} is by {column.name!r} of the type {column.type}",
                "Let it be by columns of the type string: cast it before the groupBy",
            )


def _refused(view: str, reason: str, next_step: str) -> ViewInvalid:
    return ViewInvalid(f"The view {view!r} cannot be served: {reason}", next_step=next_step)


class KnownSteps:
    """A process's cache of a view's table of steps: read on demand, and again when an entry is missing."""

    def __init__(self, view: str, path: Path) -> None:
        self._view, self._path = view, path
        self._table = StepTable({})

    def of(self, texts: tuple[str, ...]) -> Steps:
        """The steps under these texts; CheckpointInvalid, with the texts, if the file has none now.

        CheckpointInvalid too if the file has changed steps for any texts: values were computed with the earlier ones.
        """
        found = self._table.get(texts)
        if found is None:
            self._table = self._table.extended(StepTable.load(self._path).entries.items())
            found = self._table.get(texts)
        if found is None:
            raise CheckpointInvalid(
                f"The view {self._view!r} has no steps for {list(texts)} in its table, and cannot compute a column",
                where=str(self._path),
                next_step="Add this entry to the table: what writes it, mostly the view's sink, does so before a batch"
                " that needs it is committed. Readers and the replica then go on",
            )
        return found


class ComputedColumns:
    """Computes the computed columns of one view's rows; does nothing for a view without any."""

    def __init__(self, catalogue: Catalogue, steps: KnownSteps | None) -> None:
        key, columns = ([each.name for each in some] for some in (catalogue.key, catalogue.columns))
        self.columns = catalogue.computed
        self._steps = steps
        self._of = [columns.index(each.of) for each in self.columns]
        self._by = [key.index(name) for name in self.columns[0].by] if self.columns else []

    def values(self, key: Sequence[Value], values: Sequence[Value]) -> list[int | None]:
        """The computed columns of a row, from its key and its values of the catalogue's other columns."""
        if not self.columns:
            return []
        texts = tuple([key[place] for place in self._by])
        numbers = [values[place] for place in self._of]
        if None in texts:
            return [None] * len(numbers)
        assert self._steps is not None, "a view with computed columns has a table of steps"
        steps = self._steps.of(texts)  # type: ignore[arg-type]  # checked: columns of strings
        return [None if number is None else steps.value(number) for number in numbers]  # type: ignore[arg-type]


def computed_sum(computed: Computed) -> Aggregate:
    """The sum of a computed column over rows, each with the buffers of `computed_buffers`."""
    buffers = (StateColumn(0, "sum", TYPE), StateColumn(1, "isEmpty", "boolean"))
    return TrySum(ViewColumn(computed.name, TYPE, TrySum.name, buffers, computed.of))


def computed_buffers(steps: Steps | None, number: Value) -> Partial:
    """A row's contribution to the sum, from its column `of`: a value too large must not hold up all other rows."""
    if steps is None or number is None:
        return 0, True
    try:
        return steps.value(number), False  # type: ignore[arg-type]  # checked: a long
    except ValueOverflow:
        return None, False
