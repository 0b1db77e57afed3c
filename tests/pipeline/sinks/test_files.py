"""Files: a batch is one file, whole or not there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stateside.core.errors import ArchiveInvalid, SinkAway, ViewInvalid
from stateside.core.layout import Layout
from stateside.pipeline.sinks.files import ID_NAME, TEMPORARY_NAME, files
from stateside.pipeline.sinks.sink import BatchId, OnStep, Sink, SinkContext, SinkFactory

from .harness import SCHEMA, VIEW, FolderSuite, SinkCase, Values, World


def parquet(world: World, on_step: OnStep) -> SinkFactory:
    return files("out", on_step=on_step)


def read_parquet(world: World) -> list[Values]:
    paths = sorted(world.layout.files("out").glob("*.parquet"))
    return [tuple(row.values()) for path in paths for row in pq.ParquetFile(path).read().to_pylist()]


class TestParquet(FolderSuite):
    case = SinkCase("parquet files", parquet, read_parquet, steps=range(1, 7))


def jsonl(world: World, on_step: OnStep) -> SinkFactory:
    return files(str(world.layout.root / "elsewhere"), format="jsonl", on_step=on_step)


def read_jsonl(world: World) -> list[Values]:
    paths = sorted((world.layout.root / "elsewhere").glob("*.jsonl"))
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [(row["id"], row["n"], datetime.fromisoformat(row["at"])) for row in rows]


class TestJsonLines(FolderSuite):
    case = SinkCase("files of JSON lines", jsonl, read_jsonl, steps=range(1, 7))


def opened(layout: Layout, factory: SinkFactory, schema: pa.Schema = SCHEMA) -> Sink:
    return factory(SinkContext(layout, VIEW, schema))


def rows(*ids: str) -> pa.Table:
    return pa.table({"id": ids, "n": [1] * len(ids), "at": [0] * len(ids)}, SCHEMA)


def names(layout: Layout, path: str = "out") -> list[str]:
    return sorted(path.name for path in layout.files(path).iterdir() if not path.name.startswith("."))


def test_a_batch_is_one_file_named_after_batch_and_query(layout: Layout) -> None:
    sink = opened(layout, files("out", format="csv"))
    for batch in (11, 2):
        sink.write(rows("a", "b"), BatchId("q/1", batch))
    assert names(layout) == ["000000000002-q%2F1.csv", "000000000011-q%2F1.csv"]
    lines = (layout.files("out") / names(layout)[0]).read_text().splitlines()
    assert lines == ['"id","n","at"', '"a",1,1970-01-01 00:00:00.000000Z', '"b",1,1970-01-01 00:00:00.000000Z']


def test_an_empty_batch_makes_no_file(layout: Layout) -> None:
    opened(layout, files("out")).write(rows(), BatchId("q", 0))
    assert names(layout) == []


def test_what_a_crash_left_is_removed_and_never_looks_like_data(layout: Layout) -> None:
    def crash(step: int) -> None:
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened(layout, files("out", on_step=crash)).write(rows("a"), BatchId("q", 0))
    assert (layout.files("out") / TEMPORARY_NAME).exists()
    assert names(layout) == []
    opened(layout, files("out")).write(rows("a"), BatchId("q", 0))
    assert not (layout.files("out") / TEMPORARY_NAME).exists()
    assert len(names(layout)) == 1


@pytest.mark.parametrize("empty", [False, True], ids=["missing", "an empty mount point"])
def test_a_folder_that_is_gone_holds_the_batch_and_is_never_made_anew(layout: Layout, empty: bool) -> None:
    sink = opened(layout, files("out"))
    World(layout).query_id()
    sink.write(rows("a"), BatchId("q", 0))
    folder = layout.files("out")
    folder.rename(folder.with_name("away"))
    if empty:
        folder.mkdir()
    for again in (sink, opened(layout, files("out"))):
        with pytest.raises(SinkAway, match="Bring it back: the batch is held"):
            again.write(rows("b"), BatchId("q", 1))
    assert not empty or list(folder.iterdir()) == []
    if empty:
        folder.rmdir()
    folder.with_name("away").rename(folder)
    sink.write(rows("b"), BatchId("q", 1))
    assert len(names(layout)) == 2


def test_another_folder_in_its_place_holds_the_batch(layout: Layout) -> None:
    sink = opened(layout, files("out"))
    (layout.files("out") / ID_NAME).write_text('{"folder": "another"}')
    with pytest.raises(SinkAway, match="is another one than before"):
        sink.write(rows("a"), BatchId("q", 0))


@pytest.mark.parametrize("gone", [".", "checkpoint"])
def test_files_of_another_checkpoint_are_not_added_to(layout: Layout, gone: str) -> None:
    sink = opened(layout, files("out"))
    World(layout).query_id()
    sink.write(rows("a"), BatchId("q", 0))
    opened(layout, files("out"))
    shutil.rmtree(layout.view(VIEW).root / gone)
    with pytest.raises(ArchiveInvalid, match="to go on would write the same rows a second time"):
        opened(layout, files("out"))


def test_a_crash_between_the_folder_and_its_mark_is_made_good(layout: Layout) -> None:
    opened(layout, files("out"))
    shutil.rmtree(layout.view(VIEW).root)
    opened(layout, files("out")).write(rows("a"), BatchId("q", 0))
    assert len(names(layout)) == 1


def test_a_folder_that_cannot_be_written_holds_the_batch(layout: Layout) -> None:
    sink = opened(layout, files("out"))
    (layout.files("out") / TEMPORARY_NAME).mkdir()
    with pytest.raises(SinkAway, match="cannot be written"):
        sink.write(rows("a"), BatchId("q", 0))


@pytest.mark.parametrize(
    ("declare", "reason"),
    [
        (lambda: files("out", format="xml"), "format='xml'"),  # type: ignore[arg-type]
        (lambda: files("../out"), "is no folder"),
        (lambda: files(""), "is no folder"),
        (lambda: files("out", format="csv"), "'l' is of the type list<item: int64>, which csv files cannot hold"),
    ],
)
def test_files_that_cannot_be_are_refused_before_a_run(
    layout: Layout, declare: Callable[[], SinkFactory], reason: str
) -> None:
    with pytest.raises(ViewInvalid, match=reason):
        opened(layout, declare(), pa.schema([("l", pa.list_(pa.int64()))]))
    assert not layout.root.exists()
