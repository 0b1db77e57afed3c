"""Live and sealed rows together: at every moment of sealing each row is there once. Real sink and replica, no Spark."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.archive import followed
from stateside.checkpoint.types import parse_type
from stateside.errors import AccessDenied, KeyInvalid, RequestInvalid
from stateside.pipeline.sinks.delta import archive_sink
from stateside.pipeline.sinks.sink import BatchId, SinkContext
from stateside.serving.reading import sealed
from stateside.serving.reading.floor import AsOf, Floor
from stateside.serving.reading.lookup import lookup
from stateside.serving.stamp import Source
from tests.replica.spark_job import Changes, Key, Rows
from tests.rows import VALUES, WINDOW, array_of, map_of
from tests.sizes import sized

from .shop import Asked, Shop, shown, values_of

SCHEMA = pa.schema([("customer", pa.string()), ("country", pa.string()), ("orders", pa.int64()), ("total", pa.int64())])
CUSTOMERS = ["emma", "ben"]
COUNTRIES = ["a", "b", "c", "d", "de", "e", "f", "fr", "it"]
SOURCES: tuple[Source, ...] = ("both", "live", "archive")


class ClosingShop(Shop):
    """A shop whose rows are closed: they leave the state for the table `closed`, in steps as Spark and the sink take.

    `sealed_rows` are all closed ones, by the batch that closed them.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, archive="closed")
        self.sealed_rows: list[tuple[int, Key, tuple[int, int]]] = []
        self._sink = archive_sink("closed")(SinkContext(self.layout, "spending", SCHEMA))

    def store(self, closed: Sequence[Key]) -> None:
        """Step 1: the sink stores what the next batch closes; again, if the batch is repeated."""
        rows = [(*key, *self.job.rows[key]) for key in closed]
        columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
        table = pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)
        self._sink.write(table, BatchId("query", self.job.batch))

    def commit(self, closed: Sequence[Key], changes: Changes) -> None:
        """Step 2: Spark commits the batch, whose state has the closed rows no more."""
        batch = self.job.batch
        self.sealed_rows += [(batch, key, self.job.rows[key]) for key in closed]
        self.job.run({**changes, **dict.fromkeys(closed)})

    def expected(self, batch: int, source: str = "both") -> dict[str, list[dict[str, Any]]]:
        """By customer, all rows as of a batch: what lives in it, and what was sealed up to it."""
        rows: Rows = {}
        if source != "archive":
            rows |= self.job.states[batch]
        if source != "live":
            rows |= {key: row for sealed_batch, key, row in self.sealed_rows if sealed_batch <= batch}
        return {who: [row for row in shown(rows) if row["customer"] == who] for who in CUSTOMERS}

    def looked_up(self, who: str, source: Source, batch: int) -> list[dict[str, Any]]:
        """The rows of all keys that a customer may have."""
        with self.reader() as reader:
            keys = [[who, country] for country in COUNTRIES]
            answer = asyncio.run(lookup(reader, keys, Floor(), as_of=AsOf(batch), source=source))
            assert (answer.stamp.batch, answer.stamp.source) == (batch, source)
        for key, row in zip(keys, answer.rows, strict=True):
            assert row is None or [row["customer"], row["country"]] == key
        return [row for row in answer.rows if row is not None]

    def check(self, as_of: int | None = None) -> int:
        """Each source answers for each customer what it must, in one piece and in pages; the batch that it is of."""
        batches = set()
        for who in CUSTOMERS:
            for source in SOURCES:
                answer = self.page(Asked(parts=(who,), source=source), as_of=AsOf(as_of))
                assert answer.stamp.source == source
                assert answer.rows == self.expected(answer.stamp.batch, source)[who]
                paged = self.rows(Asked(parts=(who,), source=source, limit=1), as_of=AsOf(answer.stamp.batch))
                assert paged == answer.rows
                assert self.looked_up(who, source, answer.stamp.batch) == answer.rows
                batches.add(answer.stamp.batch)
        (batch,) = batches
        return batch


@pytest.mark.parametrize("kept_below_bytes", [followed.SMALL_FILE_BYTES, 0], ids=["in memory", "from disk"])
def test_at_each_step_of_sealing_every_row_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_below_bytes: int
) -> None:
    monkeypatch.setattr(followed, "SMALL_FILE_BYTES", kept_below_bytes)
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


@settings(max_examples=sized(6, 100))
@given(BATCHES)
def test_whatever_is_closed_when_every_row_is_there_once_as_of_every_batch(batches: list[tuple[Changes, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shop = ClosingShop(Path(folder))
        for number, (changes, random) in enumerate(batches):
            gone = {key for _, key, _ in shop.sealed_rows}
            closed = [key for key in sorted(shop.job.rows) if random.random() < 0.4]
            fresh: Changes = {key: row for key, row in changes.items() if key not in gone and key not in closed}
            shop.store(closed)
            if number:
                assert shop.check() == number - 1
            shop.commit(closed, fresh)
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
    for source in ("archive", "both"):
        with pytest.raises(RequestInvalid, match="Sealed rows are asked for by key"):
            shop.page(Asked(source=source))


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
    monkeypatch.setattr(sealed, "SEALED_ROWS_MAX", 0)
    with pytest.raises(KeyInvalid, match="More than 0 sealed rows would have to be looked at"):
        shop.page(Asked(parts=("emma",)))
    assert shop.page(Asked(parts=("emma",), source="live")).rows


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
    assert repr(sealed._listed(column, parse_type(type_))) == repr(values)
