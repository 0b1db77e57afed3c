"""The matrix as a page of the docs, docs/matrix.md; `python -m tests.oracle.page` writes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path

from .matrix import CHANGES, CODECS, ENCODINGS, FORMATS, PROVIDERS, Case, every_case, full_cases, refused, short_cases
from .queries import OPERATORS
from .typed_events import TYPES, Type

PAGE = Path(__file__).parents[2] / "docs" / "matrix.md"
Wanted = Callable[[Case], bool]

_HEAD = """# What is compared with Spark's own reader
Each tick is a test that runs a plain Spark query on random events of these types, in several batches with a restart
and with rows that leave the state by watermark, timer or expiry, and serves its checkpoint as `stateside serve
CHECKPOINT` does. After every batch the replica's rows must be those of `spark.read.format("statestore")` at that batch;
so must those of a replica that follows all batches at once, read as of each of them, of one that comes late and loads
the last batch from snapshots, and what readers are answered.

This page is made from `tests/oracle/matrix.py`, and a test compares the two. `make test-full` runs {full} cases, in
which every two values of the dimensions (operator, store, format, changelogs, codec, encoding, types) that can meet do
so, and every operator meets every store. `make test` runs {short}: every operator, every store, and every value of the
other dimensions, decoded alike for all operators. What `make test-full` alone runs is in brackets, (✓).
"""
_TAIL = """
## What is refused, and what is not compared
* By Spark: see the cells. In Avro a `transformWithState` takes no `tinyint` and no `smallint`; `applyInPandasWithState`
  takes no types with parts in its state. Intervals are not compared in states that are kept from Python.
* By us, with the reason in `GET /v1/views`: keys with intervals, arrays or maps, by which nobody can ask; types that
  are not in the table above, such as `variant` and `time`; joins of format 4, which Spark has for tests only. The codec
  lzf is an error of the replica (`tests/spark_state/test_real_files.py`).
* Not compared: calendar intervals (`make_interval`), which cannot be had from Spark's reader through Arrow;
  `flatMapGroupsWithState` and `transformWithState` in Scala; strings with a collation.
* A state that Spark repartitions, from 2 partitions to 7 and then to 3, is compared in the same ways by
  `tests/oracle/test_repartitioned.py`: all operators, in RocksDB, in both formats. Spark refuses to
  repartition its default store.
* Lists are stored by RocksDB's merge operator 1 in the cases of format 1, and by 2, that of new queries, in those of 2.
"""


def page() -> str:
    """The page's text."""
    full, short = full_cases(), short_cases()
    cells = _Cells(full, short)
    return (
        _HEAD.format(full=len(full), short=len(short))
        + f"\n## Operators and stores\n{cells.stores()}"
        + f"\n## Operators and types, codecs, encodings\n{cells.others()}"
        + f"\n## Types\n{_types()}"
        + _TAIL
    )


class _Cells:
    """The tables of the operators."""

    def __init__(self, full: Sequence[Case], short: Sequence[Case]) -> None:
        self._full, self._short, self._every = full, short, every_case()

    def stores(self) -> str:
        """By provider, format and changelogs."""
        there = {(case.provider, case.format, case.changes) for case in self._full}
        stores = [store for store in product(PROVIDERS, FORMATS, CHANGES) if store in there]
        names = [f"{provider}, format {form}, {changes}" for provider, form, changes in stores]
        columns = [_is(provider=provider, format=form, changes=changes) for provider, form, changes in stores]
        return self._table(names, columns)

    def others(self) -> str:
        """By each of the other dimensions."""
        dimensions = {"types": tuple(TYPES), "codec": CODECS, "encoding": ENCODINGS}
        columns = [(value, _is(**{name: value})) for name, values in dimensions.items() for value in values]
        return self._table([name for name, _ in columns], [wanted for _, wanted in columns])

    def _table(self, names: Sequence[str], columns: Sequence[Wanted]) -> str:
        rows = [[operator, *(self._cell(operator, wanted) for wanted in columns)] for operator in OPERATORS]
        return _lines(["operator", *names], rows)

    def _cell(self, operator: str, wanted: Wanted) -> str:
        """A tick if a case is run, in brackets if by `make test-full` only; else the reason that most cases have."""
        for mark, cases in (("✓", self._short), ("(✓)", self._full)):
            if any(case.operator == operator and wanted(case) for case in cases):
                return mark
        reasons = Counter(refused(case) for case in self._every if case.operator == operator and wanted(case))
        return str(reasons.most_common(1)[0][0])


def _is(**values: str) -> Wanted:
    return lambda case: all(getattr(case, name) == value for name, value in values.items())


def _types() -> str:
    rows = [[name, f"`{type_.sql}`", *_places(type_)] for name, types in TYPES.items() for type_ in types]
    return _lines(["types", "SQL type", "in keys", "in values", "in state variables", "of these in Avro"], rows)


def _places(type_: Type) -> list[str]:
    in_key = "✓" if type_.key else "refused: nobody can ask by it"
    in_avro = "✓" if type_.in_avro else "Spark fails"
    if type_.draw_avro:
        in_avro += ", but Spark fails with nulls inside"
    return [in_key, "✓", *(["✓", in_avro] if type_.in_python else ["–", "–"])]


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
