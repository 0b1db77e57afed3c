"""Lists in a replica: entries are put after those that are there, or in their place, whatever a batch does to them."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core import generations
from stateside.core.positions import Position
from stateside.replica.bootstrap import NewReplica
from stateside.replica.keys import KeyCodec
from stateside.replica.lists import Change, Entries
from stateside.replica.rollup_tables import Rollups
from stateside.replica.store import AppliedBatch, ReplicaReader, ReplicaWriter
from tests.sizes import examples

NAMES = KeyCodec(["string"])
WHOLE = KeyCodec(["string", "integer"])
Model = dict[str, list[bytes]]

names = st.sampled_from(["", "a", "a\x00", "b", "long" * 200])
rows = st.lists(st.binary(min_size=1, max_size=3), max_size=4).map(tuple)
changes = st.tuples(names, st.builds(Entries, rows, st.booleans()))
batches = st.lists(st.lists(changes, max_size=8), max_size=4)


def batch(number: int) -> AppliedBatch:
    return AppliedBatch("query", number, Position.of({}), 0, 0)


def encoded(given_changes: list[tuple[str, Entries]]) -> list[Change]:
    return [(NAMES.encode([name]), change) for name, change in given_changes]


def applied(model: Model, given_changes: list[tuple[str, Entries]]) -> Model:
    after = {name: list(entries) for name, entries in model.items()}
    for name, change in given_changes:
        after[name] = [*([] if change.replacing else after.get(name, [])), *change.rows]
    return after


def stored(folder: Path) -> Model:
    found: Model = {}
    reader = ReplicaReader(folder)
    with reader.snapshot() as snapshot:
        for key, row in snapshot.range(b""):
            name, place = WHOLE.decode(key)
            assert isinstance(name, str)
            assert place == len(found.setdefault(name, []))
            found[name].append(row)
    reader.close()
    return found


@given(batches)
@settings(max_examples=examples(15, 100))
def test_after_every_batch_a_list_has_its_entries_in_order(drawn: list[list[tuple[str, Entries]]]) -> None:
    model: Model = {}
    with TemporaryDirectory() as folder:
        for number, given_changes in enumerate(drawn):
            writer = ReplicaWriter(Path(folder))
            writer.apply(batch(number), encoded(given_changes))
            writer.close()
            model = applied(model, given_changes)
            assert stored(Path(folder)) == {name: entries for name, entries in model.items() if entries}


@given(batches)
@settings(max_examples=examples(15, 100))
def test_a_load_in_parts_has_the_same_lists(drawn: list[list[tuple[str, Entries]]]) -> None:
    model: Model = {}
    with TemporaryDirectory() as folder:
        writer = ReplicaWriter(Path(folder))
        new = NewReplica(generations.next_folder(Path(folder)), "name", Rollups())
        for given_changes in drawn:
            new.put(encoded(given_changes))
            model = applied(model, given_changes)
        new.finish(batch(0))
        writer.switch(new.folder)
        writer.close()
        assert stored(Path(folder)) == {name: entries for name, entries in model.items() if entries}
