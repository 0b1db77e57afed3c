"""Live and sealed rows together: at every moment of sealing each row is there once. Real sink and replica, no Spark."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.archive import table_reader
from stateside.core.errors import AccessDenied, ArchiveAway, KeyInvalid, RequestInvalid
from stateside.serving.access.principal import Principal
from stateside.serving.rows import archive
from stateside.serving.rows.floor import NEWEST, Floor
from stateside.serving.rows.relation import Relation
from stateside.serving.rows.row_query import page
from stateside.serving.rows.view_reader import ViewReader
from stateside.spark_state.types import parse_type
from tests.replica.spark_job import Changes, Rows
from tests.rows import VALUES, WINDOW, array_of, map_of
from tests.sizes import examples, not_in_fast

from .closing_shop import CUSTOMERS, ClosingShop
from .shop import Asked, Shop, values_of


@not_in_fast("each step of sealing is slow; rows of a sealed period are read by the others here")
@pytest.mark.parametrize("kept_below_bytes", [table_reader.SMALL_FILE_BYTES, 0], ids=["in memory", "from disk"])
def test_at_each_step_of_sealing_every_row_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_below_bytes: int
) -> None:
    monkeypatch.setattr(table_reader, "SMALL_FILE_BYTES", kept_below_bytes)
    shop = ClosingShop(tmp_path)
    emma, ben = ("emma", "de"), ("ben", "de")
    shop.batch({emma: (1, 5), ("emma", "fr"): (2, 7), ben: (1, 1)})
    assert shop.check() == 0
    shop.store([emma, ben])
    assert shop.check() == 0, "stored, not committed: the rows are live"
    shop.store([emma, ben])
    assert shop.check() == 0, "the batch is repeated after a crash"
    shop.commit([emma, ben], {("emma", "it"): (1, 1)})
    assert shop.check() == 0, "committed, but the replica has not got it yet"
    shop.follow()
    assert shop.check() == 1, "the replica has it: the rows are sealed"
    shop.store([("emma", "fr")])
    assert shop.check() == 1
    shop.commit([("emma", "fr")], {})
    shop.follow()
    assert [shop.check(as_of) for as_of in (2, 1, 0)] == [2, 1, 0]


KEYS = st.tuples(st.sampled_from(CUSTOMERS), st.sampled_from("abcdef"))
BATCHES = st.lists(
    st.tuples(st.dictionaries(KEYS, st.tuples(st.integers(1, 3), st.integers(1, 9)), max_size=4), st.randoms()),
    min_size=2,
    max_size=5,
)


@not_in_fast("a property over whole histories; the others here have one period each")
@settings(max_examples=examples(6, 100))
@given(BATCHES)
def test_whatever_is_closed_when_every_row_is_there_once_as_of_every_batch(batches: list[tuple[Changes, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shop = ClosingShop(Path(folder))
        for number, (changes, random) in enumerate(batches):
            gone = {key for _, key, _ in shop.sealed_rows}
            closed = [key for key in sorted(shop.job.rows) if random.random() < 0.4]
            new: Rows = {key: row for key, row in changes.items() if key not in gone and row is not None}
            last = {key: row for key, row in new.items() if key in closed or random.random() < 0.2}
            fresh: Changes = {key: row for key, row in new.items() if key not in last}
            shop.store(closed, last)
            if number:
                assert shop.check() == number - 1
            shop.commit(closed, fresh, last)
            shop.follow()
            assert shop.check() == number
        for number in range(len(batches)):
            assert shop.check(number) == number


@pytest.fixture
def shop(tmp_path: Path) -> ClosingShop:
    made = ClosingShop(tmp_path)
    made.batch({("emma", "de"): (1, 5), ("emma", "fr"): (2, 7), ("ben", "de"): (1, 1)})
    made.store([("emma", "de")])
    made.commit([("emma", "de")], {})
    made.follow()
    return made


def test_both_is_the_default_for_a_key_and_live_for_a_scan(shop: ClosingShop) -> None:
    by_key, whole = shop.page(Asked(parts=("emma",))), shop.page(Asked(parts=("emma", "de")))
    assert (by_key.stamp.source, values_of(by_key.rows, "country")) == ("both", ["de", "fr"])
    assert (whole.stamp.source, values_of(whole.rows, "total")) == ("both", [5])
    everything = shop.page(Asked())
    assert (everything.stamp.source, len(everything.rows)) == ("live", 2)
    sealed, both = shop.page(Asked(source="archive")), shop.page(Asked(source="both"))
    assert (sealed.stamp.source, values_of(sealed.rows, "total")) == ("archive", [5])
    assert (both.stamp.source, values_of(both.rows, "total")) == ("both", [1, 5, 7])


def test_a_scan_reads_the_archive_in_windows_and_misses_nothing(
    shop: ClosingShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "WINDOW_ROWS", 1)
    last: Rows = {(who, country): (1, 3) for who in CUSTOMERS for country in "abcdef"}
    shop.store([], last)
    shop.commit([], {}, last)
    shop.follow()
    assert shop.check() == 2


def test_a_rollup_of_live_and_sealed_rows_says_so_and_keeps_to_its_key_and_scope(shop: ClosingShop) -> None:
    both = shop.rolled_up(["country"], "both")
    assert (both.stamp.source, values_of(both.rows, "total")) == ("both", [6, 7])
    assert values_of(shop.rolled_up(["country"], "both", NEWEST, "de").rows, "total") == [6]
    assert values_of(shop.rolled_up(["customer"], "both", NEWEST, "emma").rows, "total") == [12]
    ben = Principal("ben", frozenset({"read"}), where={"customer": "ben"})
    with shop.reader() as reader:
        own = Relation.of(reader, ben, ["customer"])
        assert values_of(asyncio.run(own.rollup([], Floor(), source="both")).rows, "total") == [1]
        with pytest.raises(RequestInvalid, match="Tallies are of live rows"):
            asyncio.run(own.rollup([], Floor(), source="both", tallies=True))


def test_filters_orders_and_scopes_count_for_sealed_rows_too(shop: ClosingShop) -> None:
    assert values_of(shop.page(Asked(parts=("emma",), where=("total<7",))).rows, "total") == [5]
    assert values_of(shop.rows(Asked(parts=("emma",), order="-total", limit=1)), "total") == [7, 5]
    assert values_of(shop.page(Asked(parts=("emma",)), where={"country": "de"}).rows, "total") == [5]
    with pytest.raises(AccessDenied):
        shop.page(Asked(parts=("emma",), source="archive"), where={"customer": "ben"})


def test_a_view_without_an_archive_has_live_rows_only(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.batch({("emma", "de"): (1, 5)})
    assert shop.page(Asked(parts=("emma",))).stamp.source == "live"
    for source, sentence in (
        ("both", "has no archive"),
        ("archive", "has no archive"),
        ("old", "one of live, archive"),
    ):
        with pytest.raises(RequestInvalid, match=sentence):
            shop.page(Asked(parts=("emma",), source=source))


def test_too_many_sealed_rows_of_a_key_are_refused(shop: ClosingShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "SEALED_ROWS_MAX", 0)
    with pytest.raises(KeyInvalid, match="More than 0 sealed rows would have to be looked at"):
        shop.page(Asked(parts=("emma",)))
    assert shop.page(Asked(parts=("emma",), source="live")).rows


@pytest.mark.parametrize("kept_below_bytes", [table_reader.SMALL_FILE_BYTES, 0], ids=["in memory", "from disk"])
@pytest.mark.parametrize("left", ["nothing", "an empty folder", "a file", "the log without the rows"])
def test_while_the_table_is_away_no_row_is_missing_silently_and_then_it_goes_on(
    shop: ClosingShop, monkeypatch: pytest.MonkeyPatch, left: str, kept_below_bytes: int
) -> None:
    """A row is sealed in a version of the table that the reader has not seen when the table goes away."""
    monkeypatch.setattr(table_reader, "SMALL_FILE_BYTES", kept_below_bytes)
    table, away = shop.layout.table("closed"), shop.layout.root / "away"
    with shop.reader() as reader:
        assert values_of(_asked(reader, "both"), "country") == ["de", "fr"]
        has_seen = reader.sealed
    shop.store([("emma", "fr")])
    shop.commit([("emma", "fr")], {})
    shop.follow()
    with shop.reader() as reader:
        reader.sealed = has_seen
        table.rename(away)
        if left == "an empty folder":
            table.mkdir()
        elif left == "a file":
            table.write_text("")
        elif left == "the log without the rows":
            shutil.copytree(away / "_delta_log", table / "_delta_log")
        for source in ("both", "archive"):
            with pytest.raises(ArchiveAway, match="cannot be read") as told:
                _asked(reader, source)
            assert str(shop.layout.root) not in str(told.value.problem())
        assert values_of(_asked(reader, "live"), "country") == []
        if table.is_file():
            table.unlink()
        else:
            shutil.rmtree(table, ignore_errors=True)
        away.rename(table)
        assert values_of(_asked(reader, "both"), "country") == ["de", "fr"]


def _asked(reader: ViewReader, source: str) -> list[dict[str, Any]]:
    question = Asked(parts=("emma",), source=source).question(reader)
    return asyncio.run(page(Relation(reader), question, Floor(wait_ms=0))).rows


# Values as the table has them

STORED: dict[str, Any] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(38,10)": pa.decimal128(38, 10),
    WINDOW: pa.struct([(name, pa.timestamp("us", tz="UTC")) for name in ("start", "end")]),
    array_of("short"): pa.list_(pa.int16()),
    array_of(array_of("string")): pa.list_(pa.list_(pa.string())),
    array_of(WINDOW): pa.list_(pa.struct([(name, pa.timestamp("us", tz="UTC")) for name in ("start", "end")])),
    map_of("string", "decimal(9,2)"): pa.map_(pa.string(), pa.decimal128(9, 2)),
}


@given(st.data(), st.sampled_from(list(STORED)))
def test_a_sealed_value_is_the_same_as_a_live_one(data: st.DataObject, type_: str) -> None:
    values = data.draw(st.lists(st.none() | VALUES[type_], max_size=6))
    column = pa.array([None, *values], STORED[type_])[1:]  # sliced: offsets must be kept to
    assert repr(archive._listed(column, parse_type(type_))) == repr(values)
