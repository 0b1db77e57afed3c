"""Computed columns: a long that is made of one of a row's columns when the row is read, or added to a rollup.

    value = steps of (the texts of `by`), applied to the column `of`;  null where `of` or one of `by` is null

The steps stand in the view's table of steps, `steps.json` beside the checkpoint. Whoever writes it, mostly the view's
sink, adds an entry before the batch that first needs it is committed, and never changes one: so a value is the same
whenever and wherever it is computed. An entry that is not there is an error, never a guess.

A view has one table. All its computed columns are therefore `by` the same columns of its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stateside.checkpoint.catalogue import Catalogue, Computed
from stateside.checkpoint.steps import Steps, StepTable
from stateside.checkpoint.types import Primitive, parse_type
from stateside.checkpoint.unsafe_row import Value
from stateside.errors import CheckpointInvalid, ValueOverflow, ViewInvalid

TYPE = "long"
_FINALISERS = ("sum", "count")  # those that have the column's value as their one buffer
_EXAMPLE = 'Write it like computed=[Computed("amount_micros", of="quantity", by=("plan", "type"))]'


def declared_computed(view: str, key: Sequence[str], computed: Sequence[Computed]) -> tuple[Computed, ...]:
    """The computed columns that a view was declared with; ViewInvalid for what cannot be one with this key."""
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
    """ViewInvalid if the view has not the columns that its computed ones are made of, or not of the right types."""
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
    if column.finaliser not in _FINALISERS or parse_type(column.type) != Primitive(TYPE):
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
    """A view's table of steps as one process knows it: read when it is needed, and again when an entry is missing."""

    def __init__(self, view: str, path: Path) -> None:
        self._view, self._path = view, path
        self._table = StepTable({})

    def of(self, texts: tuple[str, ...]) -> Steps:
        """The steps under these texts; CheckpointInvalid, which names them, if the file has none now.

        CheckpointInvalid too if it has others now than before for any texts: values were computed with those.
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
    """Computes the columns of one view's rows. Without any it has nothing to do."""

    def __init__(self, catalogue: Catalogue, steps: KnownSteps | None) -> None:
        key, columns = ([each.name for each in some] for some in (catalogue.key, catalogue.columns))
        self.columns = catalogue.computed
        self._steps = steps
        self._of = [columns.index(each.of) for each in self.columns]
        self._by = [key.index(name) for name in self.columns[0].by] if self.columns else []

    def values(self, key: Sequence[Value], values: Sequence[Value]) -> list[int | None]:
        """The computed columns of a row with this key and these values of the catalogue's other columns."""
        if not self.columns:
            return []
        texts = tuple([key[place] for place in self._by])
        numbers = [values[place] for place in self._of]
        if None in texts:
            return [None] * len(numbers)
        assert self._steps is not None, "a view with computed columns has a table of steps"
        steps = self._steps.of(texts)  # type: ignore[arg-type]  # checked: columns of strings
        return [None if number is None else steps.value(number) for number in numbers]  # type: ignore[arg-type]


class ComputedSum:
    """The computed columns of several rows added up."""

    def __init__(self, columns: Sequence[Computed]) -> None:
        self._tallies = [ComputedTally(column.name) for column in columns]
        self._numbers = [[0, 0, 0] for _ in columns]

    def add(self, values: Sequence[int | None]) -> None:
        """Add one row's values."""
        for numbers, value in zip(self._numbers, values, strict=True):
            numbers[0] += value or 0
            numbers[1] += value is not None

    def values(self) -> list[int | None]:
        """The sums; null without any value, ValueOverflow if one is too large."""
        return [tally.value(numbers) for tally, numbers in zip(self._tallies, self._numbers, strict=True)]


class ComputedTally:
    """A computed column in a rollup: the sum of the rows' values, how many have one, and how many too large a one."""

    size = 3

    def __init__(self, name: str) -> None:
        self.name = name

    def numbers(self, steps: Steps | None, number: Value) -> tuple[int, int, int]:
        """Those of one row whose column `of` has this number."""
        if steps is None or number is None:
            return 0, 0, 0
        try:
            return steps.value(number), 1, 0  # type: ignore[arg-type]  # checked: a long
        except ValueOverflow:  # of this one row: it must not hold up all others
            return 0, 1, 1

    def value(self, numbers: Sequence[int]) -> int | None:
        """The sum; null without any, ValueOverflow if it or one of its rows is too large."""
        total, rows, too_large = numbers
        if too_large or not -(1 << 63) <= total < 1 << 63:
            raise ValueOverflow(
                f"The computed column {self.name!r} of all rows together is too large for {TYPE}",
                next_step="Ask for the rows, or let the steps give larger units",
            )
        return total if rows else None
