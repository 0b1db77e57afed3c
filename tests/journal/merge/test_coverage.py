"""How far a reader that stands anywhere in the merged stream has the nodes' logs: never more than is true."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.journal import Event
from stateside.journal.backends.files.segment import DurableEnd
from stateside.journal.backends.nodes import MergedJournal, Merger, NodeWriter, merger
from stateside.journal.backends.nodes.log import node_logs
from stateside.journal.backends.nodes.ownership import slot_of
from stateside.journal.backends.nodes.partition import MergedPartition
from tests.sizes import not_in_fast, sized

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
NODES = ("a", "b")
ENTITIES = st.sampled_from(["emma", "ben", "zoe", "ada", "max"])
APPENDS = st.tuples(st.sampled_from(NODES), st.lists(ENTITIES, min_size=1, max_size=4))
STEPS = st.lists(APPENDS | st.sampled_from(["merge", "merge without a", "mark"]), min_size=1, max_size=12)


@not_in_fast("a property over whole merges; the examples here are small")
@settings(max_examples=sized(25, 500), deadline=None)
@given(STEPS, st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5), st.integers(1, 4))
def test_what_is_said_to_be_covered_is_before_the_reader(
    steps: list[str | tuple[str, list[str]]], stands: list[tuple[float, float]], frame_events: int
) -> None:
    """Entities move to whoever appends; while a node's log is away, what follows its events waits."""
    with TemporaryDirectory(dir=MEMORY) as name, patch.object(merger, "FRAME_EVENTS_MAX", frame_events):
        folder, marks = Path(name), {}
        marks = play(folder, steps)
        stored = MergedJournal(folder)
        where = {place: (p, at) for p in stored.partitions() for at, place in enumerate(places(folder, p))}
        ends = stored.end()
        for stand in [*stands, (1.0, 1.0)]:
            offsets = {p: round(part * ends[p]) for p, part in zip(stored.partitions(), stand, strict=True)}
            usable = {p: mark for p, mark in marks.items() if 0 < mark.offset < offsets[p]}
            for found in (stored.sources(offsets), stored.sources(offsets, usable)):
                for log, behind in found.parts:
                    for offset in range(behind):
                        partition, at = where[(log, offset)]
                        assert at < offsets[partition], f"{log}:{offset} is said to be before {offsets}"
        assert stored.sources(ends.as_dict()).parts == tuple(sorted(log_ends(folder)))


def play(folder: Path, steps: list[str | tuple[str, list[str]]]) -> dict[str, DurableEnd]:
    """Carry the steps out, and merge all in the end; the partitions' ends at the last mark."""
    marks: dict[str, DurableEnd] = {}
    with ExitStack() as stack:
        nodes = {name: stack.enter_context(NodeWriter(folder, name)) for name in NODES}
        for number, step in enumerate([*steps, ("a", ["emma"]), "merge"]):
            if step == "mark":
                marks = {name: log.durable_end() for name, log in MergedJournal(folder).logs().items()}
            elif isinstance(step, str):
                merge(folder, without_a=step != "merge")
            else:
                append(nodes, number, *step)
    return marks


def append(nodes: dict[str, NodeWriter], number: int, name: str, entities: list[str]) -> None:
    for other in NODES:
        if other != name:
            nodes[other].release({slot_of(entity) for entity in entities})
    nodes[name].append([Event(f"{number}-{i}", entity, "call", 0, {}) for i, entity in enumerate(entities)])


def merge(folder: Path, *, without_a: bool) -> None:
    kept = folder / "nodes" / "a"
    if without_a:
        kept.rename(folder / "away")
    with Merger(folder, partitions=2) as merging:
        merging.merge()
    if without_a:
        (folder / "away").rename(kept)


def places(folder: Path, partition: str) -> list[tuple[str, int]]:
    """Where each event of a partition comes from."""
    journal = MergedPartition(folder / "merged" / partition)
    found: list[tuple[str, int]] = []
    for _, batch in journal.batches(0, journal.durable_end().offset):
        found += zip(batch.column("source").to_pylist(), batch.column("source_offset").to_pylist(), strict=True)
    return found


def log_ends(folder: Path) -> list[tuple[str, int]]:
    return [(name, log.durable_end().offset) for name, log in node_logs(folder).items() if log.durable_end().offset]
