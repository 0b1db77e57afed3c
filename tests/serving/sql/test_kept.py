"""What is kept of relations: the same rows as if they were read again, whatever changed, and within its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.layout import Layout
from stateside.replica.history import Keep
from stateside.replica.tail import Tail
from stateside.serving.sql import cache
from stateside.serving.sql.cache import CachedRelation, Chunk, Keys, RelationCache, RelationState
from stateside.serving.sql.sql_query import Ending
from tests.replica.spark_job import Changes, Job
from tests.sizes import not_in_fast, sized

from .asking import Asker, follow, shop

ALL = ("FROM spending ORDER BY ALL", "FROM spending__by_country__customer ORDER BY ALL", "FROM spending__total")


class Texts:
    """Columns whose rows are their texts."""

    schema = pa.schema([("key", pa.binary()), ("row", pa.binary())])

    def batch(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [pa.array(keys, pa.binary()), pa.array(rows, pa.binary())], schema=self.schema
        )


keys = st.binary(min_size=1, max_size=2)
contents = st.dictionaries(keys, st.binary(max_size=2), max_size=12)
changes = st.dictionaries(keys, st.none() | st.binary(max_size=2), max_size=8)


@settings(deadline=None)
@given(contents, st.lists(changes, min_size=1, max_size=4))
def test_rows_that_are_moved_are_the_rows_of_the_later_batch(
    content: dict[bytes, bytes], batches: list[dict[bytes, bytes | None]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "ROWS_MAX", 2)
        listed = sorted(content)
        parts = [listed[first : first + 3] for first in range(0, len(listed), 3)]
        chunks = tuple(Chunk.of(Texts(), part, [content[key] for key in part]) for part in parts)
        kept = CachedRelation(RelationState((), 0, ""), Texts.schema, chunks)
        for batch, changed in enumerate(batches, 1):
            kept = kept.moved(RelationState((), batch, ""), Texts(), sorted(changed.items()))
            content = {key: row for key, row in {**content, **changed}.items() if row is not None}
            expected = sorted(content.items())
            assert list(zip(*kept.table().to_pydict().values(), strict=True)) == expected
            assert [key for chunk in kept.chunks for key in chunk.keys.all()] == [key for key, _ in expected]
            assert all(0 < len(chunk.keys) <= 4 for chunk in kept.chunks)


def test_keys_are_found_among_others_by_their_order() -> None:
    kept = Keys([b"a", b"a\x00", b"", b"bc"])
    assert list(kept) == kept.all() == [b"a", b"a\x00", b"", b"bc"]


rows = st.dictionaries(
    st.tuples(st.sampled_from(["ben", "emma", "zoe"]), st.sampled_from(["de", "fr"])),
    st.none() | st.tuples(st.integers(1, 3), st.integers(0, 200)),
    max_size=4,
)


@not_in_fast("a property over whole histories; the others here have two batches")
@settings(max_examples=sized(2, 50), deadline=None)
@given(st.lists(rows, min_size=1, max_size=4))
def test_statements_between_batches_have_the_rows_of_the_newest_one(batches: list[Changes]) -> None:
    with TemporaryDirectory() as folder:
        layout = Layout(Path(folder))
        job, asker = shop(layout), Asker(layout)
        for changed in [*batches, {}]:
            for text in ALL:
                assert asker.rows(text) == asker.anew().rows(text), text
            asker.let_go()
            job.run(changed)
            follow(job)


@pytest.fixture
def read_anew(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The relations that were read from their first row to their last, in turn."""
    names: list[str] = []
    read_all = cache._all

    def noted(rows: cache.LiveRows, bytes_max: int, ending: Ending) -> CachedRelation | None:
        names.append(rows.name)
        return read_all(rows, bytes_max, ending)

    monkeypatch.setattr(cache, "_all", noted)
    return names


def move(asker: Asker, job: Job, changes: Changes) -> None:
    asker.let_go()
    job.run(changes)
    follow(job)


def test_rows_are_read_once_and_after_that_only_what_changed(layout: Layout, read_anew: list[str]) -> None:
    job, asker = shop(layout), Asker(layout)
    assert asker.rows("SELECT sum(total) FROM spending") == [[171]]
    assert asker.rows("SELECT count(*) FROM spending") == [[3]]
    move(asker, job, {("emma", "de"): None, ("zoe", "fr"): (1, 1_000), ("ben", "de"): (2, 61)})
    move(asker, job, {("adam", "fr"): (1, 1)})
    found = asker.document("SELECT sum(total), min(customer), max(customer), sum(price) FROM spending")
    assert found["rows"] == [[61 + 7 + 1_000 + 1, "adam", "zoe", -1_008]]
    assert found["stamps"][0]["batch"] == 2
    assert read_anew == ["spending"]


def test_all_is_read_anew_if_the_history_does_not_reach_back(layout: Layout, read_anew: list[str]) -> None:
    job, asker = shop(layout), Asker(layout)
    assert asker.rows("SELECT sum(total) FROM spending") == [[171]]
    asker.let_go()
    job.run({("emma", "de"): None})
    tail = Tail(job.view, keep=Keep(seconds=0))
    tail.step()
    tail.close()
    assert asker.rows("SELECT sum(total) FROM spending") == [[67]]
    assert read_anew == ["spending", "spending"]


def test_a_batch_of_another_run_is_not_taken_for_the_kept_one(layout: Layout, read_anew: list[str]) -> None:
    """The query is rolled back, and runs on with other batches of the same numbers."""
    job, asker = shop(layout), Asker(layout)
    move(asker, job, {("emma", "de"): (3, 500)})
    assert asker.rows("SELECT sum(total) FROM spending") == [[567]]
    asker.let_go()
    job.roll_back(0)
    job.run({("zoe", "fr"): (1, 1)})
    job.run({("zoe", "de"): (1, 2)})
    tail = Tail(job.view)
    while tail.step():
        pass
    tail.close()
    found = asker.document("SELECT sum(total) FROM spending")
    assert (found["rows"], found["stamps"][0]["batch"]) == ([[174]], 2)


def test_what_is_kept_stays_within_its_bytes() -> None:
    kept = RelationCache(bytes_max=900)
    some = CachedRelation(RelationState((), 1, ""), Texts.schema, (Chunk.of(Texts(), [b"k" * 100], [b"r" * 100]),))
    assert 300 < some.nbytes < 450, "there is room for two"
    for name in ("a", "b", "c"):
        kept.put(name, some)
        kept.get("a")
    assert kept.get("b") is None, "it was not asked for longest"
    assert kept.nbytes == 2 * some.nbytes
    kept.put("large", CachedRelation(RelationState((), 1, ""), Texts.schema, 4 * some.chunks))
    assert kept.nbytes == 0
