"""Check of the views of queries against the log.

Views state the places of an entity's, a tag's or a type's events. To compare the statements with the log in little
memory, each statement (kind, name, sequence, offset) is hashed to a number, and the numbers are summed: once for the
views, once for the log. An additional, missing or wrong statement changes a sum. The times of zone maps are compared
with each event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.positions import OFFSET_MAX
from stateside.journal.admin.findings import Findings
from stateside.journal.admin.index_check import Numbered
from stateside.journal.queries import generation as generations
from stateside.journal.queries.format import ENTITY, TAG, TYPE, PostingBlock, Term, ViewsDamaged, Zone, scope
from stateside.journal.queries.generation import Generation
from stateside.journal.queries.view_snapshot import ViewsSnapshot

MEND: Final = "Make them again with `stateside journal views --rebuild`; queries read the log meanwhile"
KINDS: Final = {"entities": "events of entities", "tags": "events with tags", "types": "events of types"}
_PAGE_NAMES = 1_000
_BLOCKS_MAX = 1_000  # per step: at most 4 million events, about 150 MB

Hashes = npt.NDArray[np.uint64]


class StatementSums:
    """Statements, counted and summed by kind."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, int]] = {}

    def add(self, kind: str, names: Hashes, offsets: Any, sequences: Any) -> None:
        """Add a statement for each name, offset and sequence."""
        offsets, sequences = (np.asarray(column).astype(np.uint64) for column in (offsets, sequences))
        numbers = _mixed(names ^ _mixed(offsets ^ _mixed(sequences)))
        count, total = self._sums.get(kind, (0, 0))
        self._sums[kind] = count + len(numbers), (total + int(numbers.sum(dtype=np.uint64))) % 2**64

    def of(self, kind: str) -> tuple[int, int]:
        """The number of statements, and their sum."""
        return self._sums.get(kind, (0, 0))


class ViewCheck:
    """The views at one moment, and the log's statements about the same events."""

    def __init__(
        self,
        covers: int,
        stated: StatementSums,
        zones: list[tuple[int, Zone]],
        findings: Findings,
        *,
        from_birth: bool = True,
    ) -> None:
        """`from_birth`: the log has every entity's first event; else first events are not compared."""
        self._kinds = {**KINDS, "born": "first events of entities"} if from_birth else KINDS
        self.covers, self._stated, self._findings = covers, stated, findings
        self._zones, self._firsts = zones, [first for first, _ in zones]
        self._logged = StatementSums()

    def take(self, first: int, batch: pa.RecordBatch, numbered: Numbered) -> None:
        """Add the next events of the log."""
        rows = min(batch.num_rows, self.covers - first)
        if rows <= 0:
            return
        batch, sequences = batch.slice(0, rows), numbered.sequences[:rows]
        offsets = np.arange(first, first + rows)
        names = hashes_of(batch.column("entity"))
        counted = sequences > 0
        self._logged.add("entities", names[counted], offsets[counted], sequences[counted])
        born = [row for row in numbered.born if row < rows]
        self._logged.add("born", names[born], offsets[born], np.zeros(len(born)))
        self._logged.add("types", hashes_of(batch.column("type")), offsets, np.zeros(rows))
        tags, tagged = _tagged(batch.column("tags"))
        self._logged.add("tags", tags, offsets[tagged], np.zeros(len(tagged)))
        self._check_times(first, batch.column("time").cast(pa.int64()).to_numpy())

    def finish(self, end: int) -> None:
        """All events were taken; the log ends at `end`."""
        if self.covers > end:
            self._tell(f"The views cover {self.covers} events, and the log ends at {end}")
            return
        for kind, what in self._kinds.items():
            (stated, _), (logged, _) = self._stated.of(kind), self._logged.of(kind)
            if stated != logged:
                self._tell(f"The views know {stated:,} {what}, and the log has {logged:,} up to offset {self.covers}")
            elif self._stated.of(kind) != self._logged.of(kind):
                self._tell(f"The views know other {what} than the log has up to offset {self.covers}")

    def _check_times(self, first: int, times: Any) -> None:
        at = int(np.searchsorted(self._firsts, first, "right")) - 1
        for begin, zone in self._zones[max(0, at) :]:
            if begin >= first + len(times):
                break
            low, high = max(0, begin - first), min(len(times), zone.behind - first)
            within = np.zeros(high - low, bool)
            for least, greatest in zone.spans:
                within |= (times[low:high] >= least) & (times[low:high] <= greatest)
            if not within.all():
                offset = first + low + int(np.argmin(within))
                self._tell(f"The views do not know of the time of the event at offset {offset}")

    def _tell(self, what: str) -> None:
        self._findings.add("views", what, MEND)


def opened(folder: Path, stream: str, partition: str, begin: int, findings: Findings) -> ViewCheck | None:
    """A check of the views' statements about a partition of a stream, which begins at this offset.

    None if there are no views, or if they are too damaged to compare.
    """
    path = generations.current(folder)
    if path is None:
        return None
    try:
        generation = Generation(path)
    except ViewsDamaged as damage:
        findings.add("views", f"The views in {path} are damaged: {damage}", MEND)
        return None
    try:
        with generation.reading() as transaction:
            return _read(ViewsSnapshot(transaction, generation.databases), stream, partition, begin, findings)
    except ViewsDamaged as damage:
        findings.add("views", f"The views in {path} are damaged: {damage}", MEND)
        return None
    finally:
        generation.environment.close()


def _read(snapshot: ViewsSnapshot, stream: str, partition: str, begin: int, findings: Findings) -> ViewCheck | None:
    """Read the views' statements, in one transaction."""
    state = snapshot.state
    if state.stream not in (None, stream):
        findings.add("views", f"The views are of another journal, {state.stream}", MEND)
        return None
    covers, sums = state.covers(partition), StatementSums()
    if covers <= begin:
        return ViewCheck(0, sums, [], findings)
    number = state.partitions.index(partition)
    for kind, key in (("entities", ENTITY), ("tags", scope(TAG, number)), ("types", scope(TYPE, number))):
        for page in _pages(snapshot, key):
            _add_page(snapshot, sums, kind, page, number, begin)
    after = 0
    while born := snapshot.born(partition, after, OFFSET_MAX, _PAGE_NAMES):
        sums.add("born", hashed([name for _, name in born]), [at for at, _ in born], np.zeros(len(born)))
        after = born[-1][0] + 1
    return ViewCheck(covers, sums, list(snapshot.zones(partition, begin, covers)), findings, from_birth=not begin)


def _pages(snapshot: ViewsSnapshot, key: bytes) -> Iterator[list[tuple[str, Term]]]:
    after = None
    while page := snapshot.names(key, "", after, _PAGE_NAMES):
        yield page
        after = page[-1][0]


def _add_page(
    snapshot: ViewsSnapshot,
    sums: StatementSums,
    kind: str,
    page: Sequence[tuple[str, Term]],
    partition: int,
    begin: int,
) -> None:
    """Add the views' statements about some names in a partition, many blocks at a time: most are small."""
    hashes = hashed([name for name, _ in page])
    blocks = (
        (number, place, block)
        for number, (_, term) in enumerate(page)
        for place, block in snapshot.blocks(term)
        if block.partition == partition
    )
    while found := list(islice(blocks, _BLOCKS_MAX)):
        _add_blocks(sums, kind, hashes, found, begin)


def _add_blocks(
    sums: StatementSums, kind: str, hashes: Hashes, found: list[tuple[int, int, PostingBlock]], begin: int
) -> None:
    """Add blocks; each comes with the index of its name's hash, and the place of its first event."""
    rows = np.array([len(block.offsets) for _, _, block in found])
    names = np.repeat(hashes[[number for number, _, _ in found]], rows)
    offsets = np.concatenate([block.offsets for _, _, block in found])
    sequences = np.zeros(len(offsets), np.int64)
    if kind == "entities":
        before = np.cumsum(rows) - rows
        sequences = np.repeat(np.array([place for _, place, _ in found]) - before, rows) + np.arange(len(offsets))
    there = offsets >= begin
    sums.add(kind, names[there], offsets[there], sequences[there])


def hashed(names: Sequence[str]) -> Hashes:
    """The hash of each name."""
    digests = b"".join(blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def hashes_of(column: pa.Array) -> Hashes:
    """The hash of the name in each row."""
    encoded = column.dictionary_encode()
    hashes: Hashes = hashed(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
    return hashes


def _tagged(column: pa.Array) -> tuple[Hashes, Any]:
    """The hashed tags of all rows, and the row of each; a tag given twice in one event counts once."""
    if not len(column.flatten()):
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    pairs = np.stack([hashes_of(column.flatten()), pc.list_parent_indices(column).to_numpy().astype(np.uint64)])
    once = np.unique(pairs, axis=1)
    return once[0], once[1].astype(np.int64)


def _mixed(numbers: Hashes) -> Hashes:
    """Each number scattered over all 64 bits, so that sums distinguish sets."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
