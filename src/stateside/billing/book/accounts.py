"""Accounts: customers and their assignments to plans, as arrays with vectorised lookup.

Customers are sorted by the hash of their names; customer `i` has the assignments from `firsts[i]` up to
`firsts[i + 1]`, in the journal's order. The assignments of a customer rise in offset and in effective time, so the last
one that is in effect and precedes an event is the newest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateside.billing.book.plan_rules import Assignment
from stateside.billing.book.texts import ALL, Hashes, Longs, Rows, Texts, text_hashes

NONE = -1  # "no row" in arrays of row numbers

_ASSIGNMENT = pa.struct(
    [
        pa.field("effective_us", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("plan", pa.int64(), nullable=False),
        pa.field("holder", pa.large_string()),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("name", pa.large_string(), nullable=False),
        pa.field("assignments", pa.large_list(_ASSIGNMENT), nullable=False),
    ]
)


@dataclass(frozen=True)
class Accounts:
    """Assignments of some customers. `plans` holds indexes into a list of plans kept by the owner."""

    hashes: Hashes
    names: pa.Array
    firsts: Longs
    effective_us: Longs
    offsets: Longs
    plans: Longs
    holders: pa.Array

    @classmethod
    def of(cls, assignments: Mapping[str, Sequence[Assignment]], plans: Mapping[str, int]) -> Accounts:
        """The accounts of these customers; `plans` maps each plan to its number."""
        names = pa.array(assignments, pa.large_string())
        flat = [one for several in assignments.values() for one in several]
        return cls(
            text_hashes(Texts.of(names)),
            names,
            np.cumsum([0, *(len(several) for several in assignments.values())], dtype=np.int64),
            np.array([one.effective_us for one in flat], np.int64),
            np.array([one.offset for one in flat], np.int64),
            np.array([plans[one.plan] for one in flat], np.int64),
            pa.array([one.holder for one in flat], pa.large_string()),
        )._sorted()

    @classmethod
    def of_one_each(
        cls, names: pa.Array, effective_us: Longs, offsets: Longs, plans: Longs, holders: pa.Array
    ) -> Accounts:
        firsts = np.arange(len(names) + 1)
        return cls(text_hashes(Texts.of(names)), names, firsts, effective_us, offsets, plans, holders)._sorted()

    @classmethod
    def from_batch(cls, batch: pa.RecordBatch) -> Accounts:
        """Accounts in a mapped file, without a copy."""
        lists = batch.column("assignments")
        hashes, firsts = batch.column("hash").to_numpy(), lists.offsets.to_numpy()
        values = lists.values
        effective_us, offsets, plans = (values.field(name).to_numpy() for name in ("effective_us", "offset", "plan"))
        return cls(hashes, batch.column("name"), firsts, effective_us, offsets, plans, values.field("holder"))

    def as_batch(self) -> pa.RecordBatch:
        values = [pa.array(self.effective_us), pa.array(self.offsets), pa.array(self.plans), self.holders]
        struct = pa.StructArray.from_arrays(values, fields=list(_ASSIGNMENT))
        lists = pa.LargeListArray.from_arrays(pa.array(self.firsts), struct, type=SCHEMA.field("assignments").type)
        return pa.RecordBatch.from_arrays([pa.array(self.hashes), self.names, lists], schema=SCHEMA)

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, names: Texts, hashes: Hashes) -> Longs:
        """The account of each name, or NONE. Names are compared too, so hash collisions do no harm."""
        found = np.full(len(names), NONE)
        rows, at = np.arange(len(names)), self._directory.first(hashes)
        while len(rows):
            rows, at = self._seek(rows, at, hashes)
            equal = self._names.equal(at, names, rows)
            found[rows[equal]] = at[equal]
            rows, at = rows[~equal], at[~equal] + 1
        return found

    def newest(self, accounts: Longs, times_us: Longs, before: Longs) -> Longs:
        """The number of the newest assignment in effect at a time, among the assignments before an offset; or NONE."""
        return newest(self.firsts, self.effective_us, self.offsets, accounts, times_us, before)

    def assignments(self, account: int, plans: Sequence[str]) -> list[Assignment]:
        """All assignments of one account, in the journal's order."""
        return [
            Assignment(
                int(self.offsets[at]), int(self.effective_us[at]), plans[self.plans[at]], self.holders[at].as_py()
            )
            for at in range(self.firsts[account], self.firsts[account + 1])
        ]

    def merged(self, newer: Accounts) -> Accounts:
        """The union of both; where both have an account, the newer one wins."""
        if not len(self) or not len(newer):
            return newer if len(newer) else self
        kept = np.ones(len(self), np.bool_)
        known = self.find(newer._names, newer.hashes)
        kept[known[known != NONE]] = False
        mine = self._taken(np.flatnonzero(kept))
        return Accounts(
            np.concatenate([mine.hashes, newer.hashes]),
            pa.concat_arrays([mine.names, newer.names]),
            np.concatenate([mine.firsts, mine.firsts[-1] + newer.firsts[1:]]),
            np.concatenate([mine.effective_us, newer.effective_us]),
            np.concatenate([mine.offsets, newer.offsets]),
            np.concatenate([mine.plans, newer.plans]),
            pa.concat_arrays([mine.holders, newer.holders]),
        )._sorted()

    def _sorted(self) -> Accounts:
        return self._taken(np.argsort(self.hashes, kind="stable"))

    def _taken(self, accounts: Longs) -> Accounts:
        counts = np.diff(self.firsts)[accounts]
        firsts = np.concatenate([[0], np.cumsum(counts)])
        taken = np.repeat(self.firsts[accounts] - firsts[:-1], counts) + np.arange(firsts[-1])
        names, holders = self.names.take(pa.array(accounts)), self.holders.take(pa.array(taken))
        columns = (self.effective_us[taken], self.offsets[taken], self.plans[taken])
        return Accounts(self.hashes[accounts], names, firsts, *columns, holders)

    def _seek(self, rows: Longs, at: Longs, hashes: Hashes) -> tuple[Longs, Longs]:
        """The rows whose hash occurs at or after their start position, each with the first such position."""
        found: list[tuple[Longs, Longs]] = []
        while len(rows):
            inside = at < len(self)
            rows, at = (rows, at) if inside.all() else (rows[inside], at[inside])
            here, wanted = self.hashes[at], hashes[rows]
            hit = here == wanted
            found.append((rows[hit], at[hit]))
            going = here < wanted
            rows, at = rows[going], at[going] + 1
        if not found:
            return rows, at
        return np.concatenate([part for part, _ in found]), np.concatenate([part for _, part in found])

    @cached_property
    def _names(self) -> Texts:
        return Texts.of(self.names)

    @cached_property
    def _directory(self) -> _Directory:
        return _Directory.of(self.hashes)


@dataclass(frozen=True, slots=True)
class _Directory:
    """The first position of each prefix of hash bits: about one hash per prefix, so a lookup needs no search."""

    shift: np.uint64
    begins: npt.NDArray[np.int32]

    @classmethod
    def of(cls, hashes: Hashes) -> _Directory:
        bits = max(1, len(hashes).bit_length())
        shift = np.uint64(64 - bits)
        counts = np.bincount((hashes >> shift).astype(np.int64), minlength=1 << bits)
        return cls(shift, np.concatenate([[0], np.cumsum(counts[:-1])]).astype(np.int32))

    def first(self, hashes: Hashes) -> Longs:
        return self.begins[(hashes >> self.shift).astype(np.int64)].astype(np.int64)


def newest(firsts: Longs, effective_us: Longs, offsets: Longs, groups: Longs, times_us: Longs, before: Longs) -> Longs:
    """For each group, time and offset: the group's last entry in effect and before the offset; or NONE.

    The entries of a group are contiguous from `firsts[group]` on, and rise in effective time and in offset.
    """
    found = np.full(len(groups), NONE)
    if not len(effective_us):
        return found
    rows: Rows = ALL
    low, at = firsts[groups], firsts[groups + 1] - 1
    while True:
        fits = (at >= low) & (effective_us[at] <= times_us[rows]) & (offsets[at] < before[rows])
        if isinstance(rows, slice):
            found = np.where(fits, at, NONE)
            rows = np.arange(len(groups))
        else:
            found[rows[fits]] = at[fits]
        going = ~fits & (at > low)
        if not going.any():
            return found
        rows, low, at = rows[going], low[going], at[going] - 1
