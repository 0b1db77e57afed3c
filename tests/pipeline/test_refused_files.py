"""How refused events get from the tasks' files into the table, once, whatever crashes; and how they are listed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from stateside.cli import main
from stateside.core.layout import Layout
from stateside.core.storage import Storage
from stateside.journal import Event
from stateside.journal.columns import encode
from stateside.journal.payload import fitted
from stateside.pipeline.dead_letters import (
    FILE_LETTERS_MAX,
    DeadLetters,
    Refusals,
    Validator,
    passed,
    stored_letters,
)
from stateside.spark_state.batch_log import Checkpoint

VIEW = "hourly"


def refuse(layout: Layout, *offsets: int, partition: str = "0") -> None:
    """What a task does that refuses these."""
    layout.view(VIEW).root.mkdir(parents=True, exist_ok=True)
    refusals = Refusals(Validator(layout.view(VIEW).refused, None))
    events = [Event(f"e{offset}", "sensor", "reading", 0, {"value": "hot"}) for offset in offsets]
    refusals.add_events(partition, encode(events, 7), offsets, [("mismatch", "because")] * len(offsets))
    refusals.flush()


def commit(layout: Layout, batch: int, **ends: int) -> None:
    checkpoint = layout.view(VIEW).checkpoint
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
    offsets = json.dumps({name.lstrip("_"): end for name, end in ends.items()})
    head = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
    (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{head}\n{offsets}")
    (checkpoint / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def letters(layout: Layout) -> DeadLetters:
    return DeadLetters(layout, VIEW, Checkpoint(Storage.at(layout.view(VIEW).checkpoint)))


def stored(layout: Layout) -> list[tuple[str, int]]:
    return [(letter["partition"], letter["offset"]) for letter in stored_letters(layout)]


def files(layout: Layout) -> list[str]:
    return sorted(path.name for path in layout.view(VIEW).refused.iterdir())


def test_only_what_committed_batches_refused_is_stored(layout: Layout) -> None:
    refuse(layout, 1, 3)
    refuse(layout, 0, partition="eu-1")
    refuse(layout, 5)
    commit(layout, 0, _0=5, **{"eu-1": 1})
    assert letters(layout).collect(0) == 3
    assert stored(layout) == [("0", 1), ("0", 3), ("eu-1", 0)]
    assert len(files(layout)) == 1
    commit(layout, 1, _0=6, **{"eu-1": 1})
    assert letters(layout).collect(1) == 1
    assert json.loads(layout.view(VIEW).dead_letters.read_text()) == {"count": 4}
    assert letters(layout).collect(1) == 0


def test_a_crash_after_storing_and_before_deleting_stores_nothing_twice(layout: Layout, tmp_path: Path) -> None:
    refuse(layout, 1, 2)
    commit(layout, 0, _0=5)
    shutil.copytree(layout.view(VIEW).refused, tmp_path / "copy")
    assert letters(layout).collect(0) == 2
    shutil.copytree(tmp_path / "copy", layout.view(VIEW).refused, dirs_exist_ok=True)
    refuse(layout, 2, 3)  # another attempt of the batch, which had cut its tasks in another way
    letters(layout).begin()
    assert stored(layout) == [("0", 1), ("0", 2), ("0", 3)]
    assert files(layout) == []


def test_a_start_drops_what_a_batch_refused_that_is_run_again(layout: Layout) -> None:
    refuse(layout, 1)
    commit(layout, 0, _0=2)
    refuse(layout, 2)
    (layout.view(VIEW).refused / ".0.half.arrow.0123").write_bytes(b"half")
    letters(layout).begin()
    assert (stored(layout), files(layout)) == ([("0", 1)], [])


def test_a_view_that_is_folded_again_stores_its_letters_no_second_time(layout: Layout) -> None:
    for _ in range(2):
        refuse(layout, 1)
        commit(layout, 0, _0=2)
        letters(layout).collect(0)
        shutil.rmtree(layout.view(VIEW).root)
    assert stored(layout) == [("0", 1)]


def test_a_task_that_refuses_very_many_writes_them_in_parts(layout: Layout) -> None:
    refuse(layout, *range(FILE_LETTERS_MAX + 1))
    assert len(files(layout)) == 2


def test_a_task_that_cannot_write_what_it_refuses_fails(layout: Layout) -> None:
    layout.view(VIEW).root.mkdir(parents=True)
    layout.view(VIEW).refused.write_text("no folder")
    with pytest.raises(OSError):
        refuse(layout, 1)


def test_they_are_listed_with_what_to_append_again(layout: Layout) -> None:
    layout.root.mkdir()
    command = ["dead-letters", "--dir", str(layout.root)]
    assert CliRunner().invoke(main, command).output == ""
    refuse(layout, 1)
    commit(layout, 0, _0=2)
    letters(layout).collect(0)
    assert CliRunner().invoke(main, command).output.split() == [
        *("0:1", "hourly", "sensor", "reading", "e1", "mismatch:", "because")
    ]
    told = json.loads(CliRunner().invoke(main, [*command, "--json"]).output)
    assert (told["position"], told["view"], told["reason"]) == ("0:1", "hourly", "mismatch")
    assert (told["event"]["id"], told["event"]["payload"]) == ("e1", {"value": "hot"})
    assert CliRunner().invoke(main, [*command, "--view", "other"]).output == ""


def test_billings_own_are_listed_by_its_own_command(layout: Layout) -> None:
    from stateside.billing.invoicing.documents import dead_letters_table

    dead_letters_table(layout).create()
    done = CliRunner().invoke(main, ["dead-letters", "--dir", str(layout.root)])
    assert "stateside billing dead-letters list" in done.output


@pytest.mark.parametrize("payload", ["null", "no JSON", "", "[1]", r'{"value": "\ud800"}'])
def test_a_payload_that_no_event_has_is_refused_and_kept_too(layout: Layout, payload: str) -> None:
    """`append_batch` takes payloads as they are. A task that could not write its letter would fail for ever."""
    layout.view(VIEW).root.mkdir(parents=True)
    refusals = Refusals(Validator(layout.view(VIEW).refused, None))
    batch = encode([Event("e0", "sensor", "reading", 0, {}), Event("e1", "sensor", "reading", 0, {})], 7)
    at = batch.schema.get_field_index("payload")
    batch = batch.set_column(at, batch.schema.field(at), pa.array(["{}", payload]))
    schema = pa.schema([("value", pa.float64())])
    fields, misfits = fitted(batch["payload"], schema)
    good = passed(refusals, "0", pa.array([0, 1]), batch, misfits, fields)
    assert good is not None and good.to_pylist() == [True, False]
    refusals.flush()
    commit(layout, 0, _0=2)
    letters(layout).collect(0)
    ((offset, event),) = [(letter["offset"], letter["event"]) for letter in stored_letters(layout)]
    assert offset == 1
    assert payload in event or payload in json.loads(event).values()
