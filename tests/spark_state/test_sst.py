"""Table files of RocksDB's: all keys come out, those of deletions too; what is not understood is told."""

from contextlib import suppress
from pathlib import Path

import pytest
from rocksdict import BlockBasedOptions, DBCompressionType, Options, Rdict

from stateside.spark_state.rocksdb_snapshot import SstUnknown, read_keys

CODECS = {
    "none": DBCompressionType.none(),
    "snappy": DBCompressionType.snappy(),
    "lz4": DBCompressionType.lz4(),
    "lz4hc": DBCompressionType.lz4hc(),
    "zstd": DBCompressionType.zstd(),
    "zlib": DBCompressionType.zlib(),
}


def options(codec: str, *, version: int = 5) -> Options:
    made = Options(raw_mode=True)
    made.set_compression_type(CODECS[codec])
    made.set_disable_auto_compactions(True)
    table = BlockBasedOptions()
    table.set_format_version(version)
    made.set_block_based_table_factory(table)
    return made


def tables(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(folder.glob("*.sst"))]


def key(number: int) -> bytes:
    return b"customer-%06d" % number + b"x" * (number % 300)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("codec", CODECS)
def test_all_keys_of_a_table_come_out_in_order_those_of_deletions_too(tmp_path: Path, codec: str, version: int) -> None:
    database = Rdict(str(tmp_path), options(codec, version=version))
    for number in range(0, 3_000, 2):
        database.put(key(number), b"value" * (number % 40))
    database.flush()
    for number in range(0, 3_000, 3):
        database.delete(key(number))
    database.put(b"", b"the empty key")
    database.flush()
    database.close()
    first, second = tables(tmp_path)
    assert list(read_keys(first)) == [key(number) for number in range(0, 3_000, 2)]
    assert list(read_keys(second)) == [b"", *(key(number) for number in range(0, 3_000, 3))]


def test_a_key_that_is_there_several_times_comes_out_once(tmp_path: Path) -> None:
    database = Rdict(str(tmp_path), options("lz4"))
    snapshots = []
    for value in range(3):
        database.put(b"key", b"%d" % value)
        snapshots.append(database.snapshot())  # keeps the old value
    database.flush()
    del snapshots
    database.close()
    assert [list(read_keys(table)) for table in tables(tmp_path)] == [[b"key"]]


def test_deletions_of_ranges_are_not_understood(tmp_path: Path) -> None:
    database = Rdict(str(tmp_path), options("lz4"))
    database.put(b"a", b"1")
    database.delete_range(b"a", b"c")
    database.flush()
    database.close()
    for table in tables(tmp_path):
        with pytest.raises(SstUnknown, match="deletions of ranges"):
            list(read_keys(table))


def test_other_format_versions_are_not_understood(tmp_path: Path) -> None:
    database = Rdict(str(tmp_path), options("lz4", version=6))
    database.put(b"a", b"1")
    database.flush()
    database.close()
    with pytest.raises(SstUnknown, match="format version 6"):
        list(read_keys(tables(tmp_path)[0]))


def test_a_table_that_is_cut_or_flipped_at_any_byte_of_its_blocks_is_told(tmp_path: Path) -> None:
    database = Rdict(str(tmp_path), options("zstd"))
    for number in range(40):
        database.put(key(number), b"value")
    database.flush()
    database.close()
    [table] = tables(tmp_path)
    expected = list(read_keys(table))
    for at_byte in range(0, len(table), 13):
        with pytest.raises(SstUnknown):
            list(read_keys(table[:at_byte]))
        flipped = table[:at_byte] + bytes([table[at_byte] ^ 4]) + table[at_byte + 1 :]
        with suppress(SstUnknown):
            assert list(read_keys(flipped)) == expected, at_byte  # in a block that is not read: filters, statistics
