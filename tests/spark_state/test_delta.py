"""Deltas and snapshots of the HDFS-backed store: every record in order, none from a file that is cut or flipped."""

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import CheckpointGap, CheckpointInvalid
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Checkpoint, Commit, Plan
from stateside.spark_state.changelog import StateChange
from stateside.spark_state.provider import Chain, HdfsSnapshot, newest_chain, newest_deltas, read_delta
from stateside.spark_state.slices import blocks
from tests.sizes import examples

Put = Callable[[str, bytes], Storage]
Encode = Callable[..., bytes]
Record = tuple[bytes, bytes | None]

COMMIT = Commit(4, 0, {})
RECORDS: list[Record] = [(b"key one", b"value"), (b"key two", None), (b"", b""), (b"key one", b"again")]
ROWS: list[Record] = [(b"key one", b"value"), (b"key two", b""), (b"", b"more")]

records = st.lists(st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=40)), max_size=6)


def rows_of(snapshot: HdfsSnapshot) -> list[StateChange]:
    return [row for block in snapshot.blocks() for row in block]


def read(pieces: Iterable[bytes]) -> list[Record]:
    return [(change.key, change.value) for block in blocks(pieces, "file") for change in block]


@settings(max_examples=examples(50, 300))
@given(records, st.integers(1, 100))
def test_every_record_comes_out_in_order_however_the_content_is_cut_into_pieces(
    encode_delta: Encode, records: list[Record], piece_bytes: int
) -> None:
    content = encode_delta(records)
    pieces = [content[at : at + piece_bytes] for at in range(0, len(content), piece_bytes)]
    assert read(pieces) == records


@settings(max_examples=examples(40, 200))
@given(records, st.data())
def test_a_content_cut_at_any_byte_is_damaged(encode_delta: Encode, records: list[Record], data: st.DataObject) -> None:
    content = encode_delta(records)
    cut = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(CheckpointInvalid, match="cut short"):
        list(blocks([content[:cut]], "file"))


@settings(max_examples=examples(40, 200))
@given(records, st.binary(min_size=1, max_size=9), st.booleans())
def test_nothing_may_follow_the_end_mark(
    encode_delta: Encode, records: list[Record], more: bytes, in_a_piece_of_its_own: bool
) -> None:
    content = encode_delta(records)
    pieces = [content, more] if in_a_piece_of_its_own else [content + more]
    with pytest.raises(CheckpointInvalid, match="nothing may follow the end mark"):
        list(blocks(pieces, "file"))


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xfe", b"\x80\x00\x00\x00"])
def test_a_size_below_that_of_the_end_mark_is_told_with_its_byte(size: bytes) -> None:
    with pytest.raises(CheckpointInvalid, match="a key cannot have") as of_key:
        list(blocks([b"\x00\x00\x00\x01k\x00\x00\x00\x00", size], "file"))
    assert of_key.value.where == "file, byte 9"
    with pytest.raises(CheckpointInvalid, match="a value cannot have") as of_value:
        list(blocks([b"\x00\x00\x00\x01k" + size], "file"))
    assert of_value.value.where == "file, byte 5"


def test_a_delta_is_read_from_the_file_of_its_batch(put: Put, compress_any: Encode, encode_delta: Encode) -> None:
    storage = put("state/1/2/5.delta", compress_any(encode_delta(RECORDS)))
    changelog = read_delta(storage, COMMIT, operator=1, partition=2)
    assert list(changelog.changes) == [StateChange(key, value) for key, value in RECORDS]
    assert changelog.lineage == ()


def test_a_snapshot_is_read_row_by_row(put: Put, compress_any: Encode, encode_delta: Encode) -> None:
    storage = put("state/1/2/5.snapshot", compress_any(encode_delta(ROWS), 8))
    assert rows_of(HdfsSnapshot(storage, "state/1/2/5.snapshot")) == [StateChange(key, value) for key, value in ROWS]


def test_a_deletion_in_a_snapshot_is_damage(put: Put, compress: Encode, encode_delta: Encode) -> None:
    storage = put("state/0/0/5.snapshot", compress(encode_delta(RECORDS)))
    with pytest.raises(CheckpointInvalid, match="deleted key"):
        rows_of(HdfsSnapshot(storage, "state/0/0/5.snapshot"))


@settings(max_examples=examples(40, 200))
@given(records, st.data())
def test_a_flipped_bit_in_an_lz4_delta_gives_the_right_changes_or_an_error(
    compress: Encode, encode_delta: Encode, records: list[Record], data: st.DataObject
) -> None:
    packed = bytearray(compress(encode_delta(records), 32))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "state" / "0" / "0" / "5.delta"
        file.parent.mkdir(parents=True)
        file.write_bytes(packed)
        try:
            changes = read_delta(Storage.at(folder), COMMIT, 0, 0).changes
        except CheckpointInvalid as error:
            assert "5.delta, byte" in str(error)
        else:
            assert [(change.key, change.value) for change in changes] == records


@settings(max_examples=examples(40, 200))
@given(records, st.data())
def test_a_delta_of_any_codec_cut_at_any_byte_gives_the_right_changes_or_an_error(
    compress_any: Encode, encode_delta: Encode, records: list[Record], data: st.DataObject
) -> None:
    """The end mark stands last: what is cut off before it is missed, even without a checksum."""
    packed = compress_any(encode_delta(records), 32)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "state" / "0" / "0" / "5.delta"
        file.parent.mkdir(parents=True)
        file.write_bytes(packed[: data.draw(st.integers(0, len(packed) - 1))])
        with pytest.raises(CheckpointInvalid):
            read_delta(Storage.at(folder), COMMIT, 0, 0)


def test_files_that_are_gone_are_a_gap(put: Put) -> None:
    storage = put("state/0/0/4.delta", b"")
    with pytest.raises(CheckpointGap, match=r"changes of batch 4 are gone .*5\.delta"):
        read_delta(storage, COMMIT, 0, 0)
    with pytest.raises(CheckpointGap, match=r"snapshot of version 5 is gone .*5\.snapshot"):
        HdfsSnapshot(storage, "state/0/0/5.snapshot").blocks()


@pytest.fixture
def store(put: Put, compress: Encode, encode_delta: Encode) -> Callable[..., Storage]:
    """A partition with these deltas and snapshots, and with names beside them that are no such files."""

    def write(deltas: range, *snapshots: int) -> Storage:
        for version in deltas:
            put(f"state/0/0/{version}.delta", compress(encode_delta(RECORDS)))
        for version in snapshots:
            put(f"state/0/0/{version}.snapshot", compress(encode_delta([(b"version", b"%d" % version)])))
        put("state/0/0/.3.snapshot.tmp", b"")
        put("state/0/0/.9.snapshot.crc", b"")
        return put("state/0/0/_metadata/schema", b"")

    return write


def chain_to(storage: Storage, batch: int) -> Chain | None:
    plan = Plan(batch, Position.start(), 0, 0, {})  # the HDFS-backed store is Spark's default
    return newest_chain(Checkpoint(storage), plan, Commit(batch, 0, {}), 0, 0)


@pytest.mark.parametrize(("batch", "version"), [(11, 12), (10, 7), (6, 7), (5, 3), (2, 3)])
def test_the_newest_snapshot_is_the_last_one_up_to_the_batch(
    store: Callable[..., Storage], tmp_path: Path, batch: int, version: int
) -> None:
    storage = store(range(2, 13), 3, 7, 12)
    chain = chain_to(storage, batch)
    assert chain is not None and chain.snapshot == Commit(version - 1, 0, {})
    with chain.open_snapshot(storage, tmp_path) as snapshot:
        assert isinstance(snapshot, HdfsSnapshot)
        assert rows_of(snapshot) == [StateChange(b"version", b"%d" % version)]


def test_a_snapshot_after_the_batch_does_not_count(store: Callable[..., Storage]) -> None:
    assert chain_to(store(range(2, 13), 3, 7, 12), 1) is None


def test_a_snapshot_whose_later_deltas_are_gone_is_of_no_use(store: Callable[..., Storage]) -> None:
    storage = store(range(10, 13), 3, 7)
    assert newest_deltas(storage, Commit(11, 0, {}), 0, 0) is None
    assert newest_deltas(storage, Commit(6, 0, {}), 0, 0) == (Commit(6, 0, {}), ())


def test_where_there_is_no_state_there_is_no_snapshot(put: Put) -> None:
    assert newest_deltas(put("other", b""), Commit(5, 0, {}), 0, 0) is None


def test_the_shortest_way_to_a_batch_is_its_newest_snapshot_and_the_deltas_after_it(
    store: Callable[..., Storage],
) -> None:
    storage = store(range(2, 13), 3, 7)
    chain = chain_to(storage, 8)
    assert chain is not None
    assert chain.file_names(storage) == ["state/0/0/7.snapshot", "state/0/0/8.delta", "state/0/0/9.delta"]
    at_snapshot = chain_to(storage, 6)
    assert at_snapshot is not None and at_snapshot.file_names(storage) == ["state/0/0/7.snapshot"]


def test_without_a_snapshot_all_deltas_are_the_way_unless_one_is_gone(store: Callable[..., Storage]) -> None:
    storage = store(range(1, 4))
    chain = chain_to(storage, 2)
    assert chain is not None
    assert chain.file_names(storage) == [f"state/0/0/{version}.delta" for version in (1, 2, 3)]
    assert chain.snapshot_name() is None
    assert chain_to(store(range(1, 4)), 3) is None
    (Path(store(range(1, 4)).root) / "state/0/0/2.delta").unlink()
    assert chain_to(Storage.at(store(range(0)).root), 2) is None
