"""The matrix: for which operators, in which stores, the replicas are compared with Spark's own reader of the state.

A case is one value of each dimension. `refused` says of which there is none, and why. Of the others `make test-full`
runs so many that every two values that can meet do so in some case, and every operator meets every way to store its
state; `make test` runs fewer (`short_cases`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import cache
from itertools import combinations, product

from .queries import OPERATORS
from .typed_events import TYPES, Type, in_avro

PROVIDERS = ("HDFS-backed", "RocksDB")
FORMATS = ("1", "2")
CHANGES = ("changelogs", "no changelogs")
CODECS = ("lz4", "zstd", "snappy")
ENCODINGS = ("unsaferow", "avro")

Value = tuple[int, str]  # a dimension's place, and one of its values
Combinations = set[tuple[Value, ...]]


@dataclass(frozen=True)
class Case:
    """One value of each dimension."""

    operator: str
    provider: str
    format: str
    changes: str
    codec: str
    encoding: str
    types: str

    def __str__(self) -> str:
        return "-".join(map(str, astuple(self))).replace(" ", "_").replace(":", "").replace(",", "")

    @property
    def seed(self) -> int:
        """What its data is drawn from: the same in every run."""
        return sum(place * ord(letter) for place, letter in enumerate(str(self), 1))

    def columns(self) -> tuple[Type, ...]:
        """The types of its columns: those that Spark takes in this encoding."""
        return in_avro(TYPES[self.types]) if self.encoding == "avro" else TYPES[self.types]

    def conf(self) -> dict[str, str]:
        """The settings of its query."""
        state = "spark.sql.streaming.stateStore"
        provider = "HDFSBackedStateStoreProvider" if self.provider == "HDFS-backed" else "RocksDBStateStoreProvider"
        return {
            f"{state}.providerClass": f"org.apache.spark.sql.execution.streaming.state.{provider}",
            f"{state}.checkpointFormatVersion": self.format,
            f"{state}.rocksdb.changelogCheckpointing.enabled": str(self.changes == "changelogs").lower(),
            f"{state}.compression.codec": self.codec,
            f"{state}.encodingFormat": self.encoding,
            f"{state}.rocksdb.mergeOperatorVersion": self.format,  # lists; new queries have 2
            f"{state}.minDeltasForSnapshot": "1",
            f"{state}.multiplierForMinVersionDiffToLog": "1",  # a snapshot with every other commit
            "spark.sql.shuffle.partitions": "2",
        }


def refused(case: Case) -> str | None:
    """Why there is no such state, if there is none."""
    if case.provider == "HDFS-backed":
        if case.format == "2":
            return "Spark refuses format 2 in this store"
        if case.changes == "no changelogs":
            return "this store always writes its changes"
        if case.operator.startswith("transformWithState"):
            return "Spark refuses transformWithState in this store"
        if case.operator.endswith("format 3"):
            return "Spark refuses joins of format 3 in this store"
    if case.changes == "no changelogs" and case.codec != CODECS[0]:
        return "without changelogs no file is compressed by the codec"
    if case.encoding == "avro" and not case.operator.startswith("transformWithState"):
        return "Spark refuses Avro for other operators than transformWithState"
    return None


def every_case() -> list[Case]:
    """All combinations, also those that are refused."""
    dimensions = (OPERATORS, PROVIDERS, FORMATS, CHANGES, CODECS, ENCODINGS, tuple(TYPES))
    return [Case(*values) for values in product(*dimensions)]


def all_cases() -> list[Case]:
    """Every case that there can be."""
    return [case for case in every_case() if refused(case) is None]


@cache
def full_cases() -> list[Case]:
    """Every two values that can meet, and every operator in every store."""
    return _covering(lambda case: {*combinations(_values(case), 2), tuple(_values(case)[:4])})


@cache
def short_cases() -> list[Case]:
    """Every operator, every way to store a state, and every value of the other dimensions.

    Stores, types and codecs are decoded by the same code for all operators.
    """
    return _covering(lambda case: {tuple((values := _values(case))[1:4]), *((value,) for value in values)})


def _values(case: Case) -> list[Value]:
    return list(enumerate(astuple(case)))


def _covering(wanted: Callable[[Case], Combinations]) -> list[Case]:
    """A few cases with all wanted combinations: each time the one with most new ones, or else with most new pairs.

    Of several, the first one; so the choice is always the same. Those that later ones made superfluous are left out.
    """
    cases = all_cases()
    combined = {case: wanted(case) for case in cases}
    pairs = {case: set(combinations(_values(case), 2)) for case in cases}
    missing: Combinations = set().union(*combined.values())
    unmet = set().union(*pairs.values())
    chosen: list[Case] = []
    while missing:
        best = max(cases, key=lambda case: (len(combined[case] & missing), len(pairs[case] & unmet)))
        chosen.append(best)
        missing -= combined[best]
        unmet -= pairs[best]
    counts = Counter(each for case in chosen for each in combined[case])
    for case in list(chosen):
        if all(counts[each] > 1 for each in combined[case]):
            chosen.remove(case)
            counts -= Counter(combined[case])
    return sorted(chosen, key=cases.index)
